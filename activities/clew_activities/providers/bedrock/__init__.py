"""Converse, the API of Amazon Bedrock for the models of all vendors there. Signatures and frames are in `aws`.

| module | content |
|---|---|
| `provider` | the provider: its variables, and requests |
| `models` | what Converse takes for each family of models |
| `stream` | replies and errors |
"""
