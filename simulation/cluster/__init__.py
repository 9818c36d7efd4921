"""The simulation of a cluster's metadata: quorum, controllers, broker lifecycle, and clients."""
