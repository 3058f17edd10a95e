"""Sums and means among workers: one interface (`backend`), and a module or package a backend."""
