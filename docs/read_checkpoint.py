# Plain Orbax, no HybridSync: `python docs/read_checkpoint.py RUN/checkpoints` prints the newest leaves.
# The state is {params, opt_state, model_state, protocol_state, counters}; docs/read_checkpoint.md makes a model of it.
import os
import sys

import jax
import orbax.checkpoint as ocp

checkpoints = ocp.CheckpointManager(os.path.abspath(sys.argv[1]))
items = ocp.args.Composite(state=ocp.args.PyTreeRestore())
state = checkpoints.restore(checkpoints.latest_step(), args=items).state
for path, leaf in jax.tree_util.tree_leaves_with_path(state):
    print(jax.tree_util.keystr(path, simple=True, separator="/"), leaf.dtype, leaf.shape)
