"""One fused pass per tensor: statistics, hash and histogram at the speed of reading it.

`_fused` (C, optional) for host memory, `twin` the same in numpy, `device` (Triton) for CUDA, compiled by `apart`.
`elements` names the types that all of them know; `host` takes torch tensors to the first that is there.
"""
