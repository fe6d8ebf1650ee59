"""The tests of the service over HTTP."""
