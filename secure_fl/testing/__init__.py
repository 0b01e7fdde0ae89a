"""Test helpers for your own algorithms and engines; production code does not use them.

`harness`    a federation of party programs written by hand: every real component but the models
`engines`    a check that an engine delivers frames correctly
`hospitals`  small built-in hospitals, and federations of them that train in a second

An algorithm is right if its result under `he+secagg` is that of `none`, and the same again after
a party was lost and a run resumed: `hospitals.small(algorithm, mode)` trains it, and
`harness.LossyEngine` loses parties. An engine is right if `engines.require_carries` finds nothing.
"""
