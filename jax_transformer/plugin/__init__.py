"""The pytest plugin; `pip install` registers it. It loads nothing of JAX or PyTorch by itself."""
