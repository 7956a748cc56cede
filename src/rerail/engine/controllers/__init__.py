"""Controllers: steps that have other steps run. A module per kind; `controller` has what they share, and pipelines."""
