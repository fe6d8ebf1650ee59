"""Model calls of sessions.

| module | content |
|---|---|
| `prepare` | the activities that resolve a session's configuration: its agent, its tools, its model's profile |
| `call_model` | the activity that calls a model, and the slots for such calls in a process |
| `load_media` | the images, recordings and files of a call, from the archive and into it |
| `reply_in_progress` | what a call has read of its reply, for heartbeats and for interrupted calls |
| `structured_output`, `validation_process` | the validation of answers with a schema, in a child process |
| `summarize` | the activity that has a model summarize a part of a lane |
| `summary_calls` | pure: the calls that a summary needs, and the same requests made again from the thread |
| `model_table` | windows, longest replies, encodings and prices of models |
"""
