"""Commands that an engineer runs beside the server, and the simulator behind them. The server imports none of it.

`commands/` has them: `starling models` lists models, `check` tries them, `new` makes a model's folder, `profile`
measures batch times, and `simulate`, `optimum` and `size` plan with these. Each loads what it needs when it runs.
`starling serve` has `scaffold/` write the model.toml of a model without one, as `new` does. The modules here are the
simulator: the scheduler of `app/` in virtual time, without torch or asyncio.
"""
