"""DISB, REEF's benchmark of real-time and best-effort clients: its workloads, live and on the modelled GPU."""
