"""Forecasts how long operations take, by a model in this process or by a prediction service, behind one interface.

`predictor.Predictor` is the interface. `predictor.LocalPredictor` asks a model in this process,
`remote.RemotePredictor` a service over HTTP. `fallback.first_curves` asks several predictors until one answers;
`fallback.roofline` forecasts without any model.
"""
