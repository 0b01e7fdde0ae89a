"""What helps to test an algorithm or an engine of your own; nothing of it runs in production.

`harness`    a federation of party programs written by hand: every real component but the models
`engines`    whether an engine carries frames as it must
`hospitals`  small built-in hospitals, and federations of them that train in a second
`pilot`      hospitals that restart and a coordinator that gathers them, in one process
`mutants`    frames as nobody ever sent them, from genuine ones
`fuzzing`    those, thrown at both ends of a pilot's run

An algorithm is right if its result under `he+secagg` is that of `none`, and the same again after
a party was lost and a run resumed: `hospitals.small(algorithm, mode)` trains it, and
`harness.LossyEngine` loses parties. An engine is right if `engines.require_carries` finds nothing.
"""
