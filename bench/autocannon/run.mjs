// Measures one call of the HTTP API with autocannon, prints the result and writes it to
// bench/results/autocannon-<call>.json. Usage:
//
//   node bench/autocannon/run.mjs <call> [--api http://127.0.0.1:5001] [--token T]
//        [--connections 64] [--seconds 10] [--amount N]

import { mkdirSync, writeFileSync } from "node:fs";
import { parseArgs } from "node:util";
import autocannon from "autocannon";
import { CALLS, PREPARE } from "./calls.mjs";

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    api: { type: "string", default: "http://127.0.0.1:5001" },
    token: { type: "string", default: "" },
    connections: { type: "string", default: "64" },
    seconds: { type: "string", default: "10" },
    amount: { type: "string" },
  },
});
const [name = ""] = positionals;
const requests = CALLS[name];
if (requests === undefined) fail(`The call must be one of ${Object.keys(CALLS).join(", ")}.`);

const run = Date.now().toString(36);
for (const { method, path, headers, body } of PREPARE) {
  const response = await fetch(values.api + path, { method, headers: withToken(headers), body });
  if (!response.ok && response.status !== 409) fail(`${path}: ${await response.text()}`);
}

let connections = 0;
const result = await autocannon({
  url: values.api,
  connections: Number(values.connections),
  ...(values.amount === undefined
    ? { duration: Number(values.seconds) }
    : { amount: Number(values.amount) }),
  idReplacement: requests.some(({ body }) => body?.includes("[<id>]")),
  setupClient(client) {
    connections += 1;
    const connection = `connection-${run}-${connections}`;
    let streams = 0;
    client.setRequests(
      requests.map((request) => ({
        ...request,
        headers: withToken(request.headers),
        setupRequest: (next) => {
          if (next.body?.includes("___TextMessageStart")) streams += 1;
          const body = next.body
            ?.replaceAll("{connection}", connection)
            .replaceAll("{stream}", `stream-${run}-${streams}`);
          return { ...next, body };
        },
      })),
    );
  },
});

const failed = result.non2xx + result.errors + result.timeouts;
process.stdout.write(`${autocannon.printResult(result)}\n`);
const folder = new URL("../results/", import.meta.url);
mkdirSync(folder, { recursive: true });
const file = new URL(`autocannon-${name}.json`, folder);
writeFileSync(file, `${JSON.stringify(result, undefined, 2)}\n`);
if (failed > 0) fail(`${failed} of ${result["2xx"] + failed} calls failed.`);

function withToken(headers = {}) {
  return values.token === "" ? headers : { ...headers, token: values.token };
}

function fail(message) {
  process.stderr.write(`autocannon: ${message}\n`);
  process.exit(1);
}
