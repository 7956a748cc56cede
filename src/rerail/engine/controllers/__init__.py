"""Controllers: steps that have other steps run. A module per kind; `base` has what they share, and pipelines."""
