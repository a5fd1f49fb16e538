"""Control policy: when, which model, how many, which units, and Algorithm 1 over them (§5).

Pure: values in, values out.  Nothing here acts, reads a clock, keeps state or imports more than
the standard library and ``mirage_core.model`` / ``errors``; section numbers are the paper's.

  cost          step time of a model under a remap plan, from measured times   (§5.3, §5.4)
  which_units   evenly spaced units, their slots, nested growth                 (§5.4)
  how_many      the plan table of a model: pages freed against step time added  (§5.3, §5.4)
  when          shortage predicted; what a pool can give back                   (§5.1, §7.6.1)
  view          one snapshot of a device
  which_model   the order of donors                                             (§5.2)
  settings      what an operator chooses
  decision      what is to be done, and why
  algorithm1    one decision from one snapshot                                  (§5.5)
"""
