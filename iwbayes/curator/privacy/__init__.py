"""What privacy costs and how it is kept: ledger, accounting, filter, mechanisms, noise."""
