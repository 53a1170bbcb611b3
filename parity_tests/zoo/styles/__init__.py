"""Classes of modules that compute what `PytorchTransformer` does, as programs of several schools write them."""
