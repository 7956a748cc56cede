"""The imperative shell: joins the pure core to stores, kinds and executors."""
