// The client of the description in openapi.json, with the interface of fetch and no package of its own.
export default {
  input: "openapi.json",
  output: { path: "client", importFileExtension: ".js" },
  plugins: ["@hey-api/typescript", "@hey-api/sdk", "@hey-api/client-fetch"],
};
