"""Members of share groups in whole clusters, and the checks of what they are told."""
