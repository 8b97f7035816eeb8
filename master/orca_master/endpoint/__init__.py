"""The HTTP application: routes, answers, middleware, and the admin port."""
