"""Optimizers' states between frameworks: `kinds` says how PyTorch's optimizers keep them, `numbering` which parameter
each entry belongs to, `conversion` moves the arrays by a dialect's table, `schedulers` reads schedules, and `files`
knows what checkpoints keep all this in."""
