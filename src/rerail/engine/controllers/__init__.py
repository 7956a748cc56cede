"""Controllers: steps that run other steps. A module per kind; `controller` has the base class, and pipelines."""
