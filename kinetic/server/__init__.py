"""The HTTP server: one stream of events, told in the dialects of four other programs.

    app.py        which path is answered by what
    serve.py      sockets, limits, graceful stop
    service.py    the loaded model as the routes see it
    asks.py       a request of any dialect as one neutral `Ask`
    events.py     an answer of any number of choices as one neutral stream of events
    openai.py, responses.py, anthropic.py, ollama.py, llama_server.py
                  translate requests in and events out, nothing more

Everything here runs on one asyncio loop. Models run on the engine's own thread; what takes long
beside them, such as tokenizing, runs on worker threads.
"""
