"""A translation server: dynamic batches, streams of tokens, limits and metrics.

`jax-transformer serve` runs it. The way of a request: `app` receives it, `requests` checks it, `engine` tokenizes it,
`batcher` lets it wait, `device` decodes it in a batch, and `app` answers.
"""
