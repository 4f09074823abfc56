// Paths are relative to /docs, so that they hold behind an ingress that has a prefix.
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#docs",
  deepLinking: true,
  docExpansion: "list",
  defaultModelsExpandDepth: -1, // schemas stand at the operations
  displayRequestDuration: true,
  tryItOutEnabled: true,
  validatorUrl: null, // or the page would ask another host
});
