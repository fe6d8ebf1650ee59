"""The servers of the local cluster: which versions, where their programs are, and how they are built."""
