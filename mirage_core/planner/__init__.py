"""``mirage plan``: which models fit on which GPUs, and what remapping gains there, before buying.

  wanted    what the operator asks: a file, or options
  place     models on GPUs, by the cluster's own placement policy
  lend      what each model gives and gets, by the device's own policy
  load      latency and cost against load, by the simulator
  plan      the three together
  report    the table
  picture   the memory map
  commands  the command

All figures are estimates from published and measured rates of the GPU's kind (``sizing.hardware``),
given as ranges over them; none is calibrated.
"""
