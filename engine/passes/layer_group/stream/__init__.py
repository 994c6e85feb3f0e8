"""Groups that stream weights (`--fuse-weights`): activations stay in local memory between products whose weights come
tile by tile. They are ours; TPU-MLIR leaves every such product outside of groups."""
