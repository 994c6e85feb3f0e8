"""Groups that stream weights (`--fuse-weights`): activations stay in local memory between quantised products, whose
weights come tile by tile. They are ours; TPU-MLIR leaves every such product outside of groups.

    chain      what can be streamed together, when its values are there, in which layout
    pieces     layouts in local memory and the instructions of ops on pieces; moves: what loads and stores move
    schedule   runs and time steps of a cut; buffers, memory: their places; prices: what runs cost
    trial      the cut of one candidate; search: which parts of a module are streamed; planned: the plan of a group
    ginfo      what the IR says of it; view, emission, check: places, instructions and invariants from the IR alone

In the IR such a group has the type 16 and one slice. Its `flow` lists the time steps of all tiles: an op runs once for
each of its pieces, which the lists of its `ginfo` cut (c: tokens, or rows of a weight; w: columns), under ids that
count up from its own. `tile_addr` says where pieces lie in turn that have a place of their own; other pieces lie in the
whole value at `out_addr`. Weights and gains of norms come again for each slice of rows that `row_idx` lists.
"""
