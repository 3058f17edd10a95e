"""How workers sum and average among themselves: one interface (`backend`), and a module or package a backend."""
