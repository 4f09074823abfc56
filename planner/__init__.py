"""Commands that an engineer runs beside the server, and the simulator behind them. The server imports none of it.

`commands/` has them: `starling new` makes a model's folder, `profile` measures its batch times, and `simulate`,
`optimum` and `size` plan with these. Each loads what it needs when it runs. The modules here are the simulator: the
scheduler of `app/` in virtual time, without torch or asyncio.
"""
