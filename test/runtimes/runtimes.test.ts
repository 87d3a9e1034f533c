// The broker on other versions of Node.js, and the built package of the SDK in other runtimes and
// in test runners, against a real broker. Only `npm run test:full` runs these tests; .ci/runtimes
// installs what they need.

import { execFileSync } from "node:child_process";
import { cp, mkdir, symlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import t from "tap";
import { CLIENT_PACKAGE, registerTalkers, TALK } from "../client/talk.ts";
import { type Broker, spawnBroker, tempFolder, textPayload } from "../support/broker.ts";
import { run } from "../support/run.ts";
import { signedPath } from "../support/signed-path.ts";
import { IS_FULL } from "../support/volume.ts";

const SCRIPT = fileURLToPath(new URL("../../.ci/runtimes", import.meta.url));
const skip = IS_FULL ? false : "only npm run test:full installs the runtimes";
const LONG = { skip, timeout: 300_000 };

const packages = execFileSync(SCRIPT, ["--print"], { encoding: "utf8" }).trim();
const RUNTIMES: Readonly<Record<string, readonly string[]>> = {
  "Node.js 22": [join(packages, "node22/bin/node")],
  "Node.js 24": [join(packages, "node24/bin/node")],
  "Node.js 26": [join(packages, "node26/bin/node")],
  Bun: [join(packages, "bun/bin/bun"), "run"],
  Deno: [join(packages, "deno/deno"), "run", "--allow-all", "--quiet"],
};

/**
 * Code that connects to an address that refuses connections. An attempt may take ten minutes, so
 * the code ends in time only if the runtime reports each refusal at once.
 */
const REFUSED = `
const refused = connect({ url: "ws://127.0.0.1:1", uid: "amy", timeouts: { connectMs: 600000 } });
const errors = [];
await new Promise((resolve) => refused.on("error", (error) => errors.push(error) === 3 && resolve()));
await refused.close();
if (errors.some(({ code }) => code !== "connection_lost")) console.log(errors);
`;

/** Code that reads a durable stream and appends to it. The signed path is the second argument. */
const RECORDS = `
const reader = connect({ url: process.argv[2], uid: "amy", token: "amy-token" });
const stream = reader.stream(process.argv[3]);
const own = Math.random();
for await (const { data } of stream) {
  if (data === 0) await stream.append(own);
  if (data === own) break;
}
await reader.close();
`;

/**
 * Versions of Node.js on which the broker runs, with the driver of the sockets. Node.js 24 loads
 * uWebSockets.js only after the command in docs/dependencies.md.
 */
const BROKERS = {
  "Node.js 22": "uws",
  "Node.js 24": "portable",
  "Node.js 26": "portable",
} as const;

for (const [name, driver] of Object.entries(BROKERS))
  t.test(
    `the broker on ${name} serves the SDK, keeps its messages through kill -9, and ends on SIGTERM`,
    LONG,
    async (t) => {
      const node = RUNTIMES[name]?.[0] ?? "";
      const settings = { JINDOU_TRANSPORT_DRIVER: "auto" };
      const first = await spawnBroker(t, settings, undefined, { node });
      const metrics = await first.call("/metrics");
      t.match(metrics.body, `jindou_transport_info{driver="${driver}",`);
      await registerTalkers(first);
      const load = `import { connect, group } from "${CLIENT_PACKAGE}/index.js";`;
      const url = `ws://127.0.0.1:${first.clientPort}`;
      const { output, errors } = await run(t, "talk.mjs", `${load}\n${TALK}`, [url]);
      t.equal(output, "works\n", errors);
      const payload = textPayload("kept");
      const to = { channel_id: "ben", channel_type: 1, from_uid: "amy", payload };
      const sent = await first.call("/message/send", { ...to, client_msg_no: "last" });
      t.equal(sent.status, 200, sent.body);
      await first.kill();
      const second = await spawnBroker(t, settings, first.dataPath, { node });
      const again = await second.call("/message/send", { ...to, client_msg_no: "last" });
      t.match(again.body, { repeated: 1, message_id: sent.body.message_id }, "the message is kept");
      t.equal(await second.terminate(), 0);
    },
  );

async function createStream(broker: Broker): Promise<string> {
  const path = "/v1/stream/runtimes";
  const headers = { "content-type": "application/json" };
  const url = `http://127.0.0.1:${broker.apiPort}${path}`;
  await fetch(url, { method: "PUT", headers, body: "[0]" });
  return signedPath(broker, path, "write");
}

for (const [name, command] of Object.entries(RUNTIMES))
  t.test(
    `the SDK in ${name} exchanges messages and records, reports a refused address, and does not keep the process alive`,
    LONG,
    async (t) => {
      const broker = await spawnBroker(t);
      await registerTalkers(broker);
      const args = [`ws://127.0.0.1:${broker.clientPort}`, await createStream(broker)];
      const load = `import { connect, group } from "${CLIENT_PACKAGE}/index.js";`;
      const program = `${load}\n${REFUSED}\n${RECORDS}\n${TALK}`;
      const module = await run(t, "talk.mjs", program, args, command);
      t.equal(module.output, "works\n", module.errors);
      t.equal(module.exitCode, 0);
      if (name === "Deno") return; // its programs are modules
      const require = `const { connect, group } = require("${CLIENT_PACKAGE}/index.cjs");`;
      const common = `${require}\n(async () => {${REFUSED}${RECORDS}${TALK}})();`;
      const { output, errors } = await run(t, "talk.cjs", common, args, command);
      t.equal(output, "works\n", errors);
    },
  );

t.test(
  "the SDK exchanges messages in vitest and Jest, each with the environments node and jsdom",
  LONG,
  async (t) => {
    const broker = await spawnBroker(t);
    await registerTalkers(broker);
    const url = `ws://127.0.0.1:${broker.clientPort}`;
    const folder = await tempFolder(t);
    await mkdir(join(folder, "node_modules"));
    await cp(CLIENT_PACKAGE, join(folder, "node_modules/jindou-client"), { recursive: true });
    for (const name of ["jest", "jest-environment-jsdom", "vitest", "jsdom"])
      await symlink(join(packages, name), join(folder, "node_modules", name));
    const body = TALK.replace(/const url = .*;/, `const url = "${url}";`).replace(
      "console.log(",
      "if (!works) throw new Error(",
    );
    const test = `test("talk", async () => {${body}}, 60000);`;
    const node = join(packages, "node24/bin/node");
    const programs = {
      vitest: `import { test } from "vitest";\nimport { connect, group } from "jindou-client";\n${test}`,
      jest: `const { connect, group } = require("jindou-client");\n${test}`,
    };
    await writeFile(join(folder, "package.json"), '{"private":true}');
    await writeFile(join(folder, "vitest.test.mjs"), programs.vitest);
    await writeFile(join(folder, "jest.test.js"), programs.jest);
    const start = (args: readonly string[]) =>
      run(
        t,
        "start.mjs",
        `
import { spawnSync } from "node:child_process";
const { stdout, stderr, status } = spawnSync(process.execPath, ${JSON.stringify(args)}, {
  cwd: ${JSON.stringify(folder)}, encoding: "utf8" });
console.log(status);
if (status !== 0) console.error(stdout, stderr);
`,
        [],
        [node],
      );
    for (const environment of ["node", "jsdom"]) {
      const vitest = [join(packages, "vitest/vitest.mjs"), "run", "--environment", environment];
      const inVitest = await start([...vitest, "vitest.test.mjs"]);
      t.equal(inVitest.output, "0\n", `vitest ${environment} ${inVitest.errors}`);
      const jest = [join(packages, "jest/bin/jest.js"), "--env", environment, "jest.test.js"];
      const inJest = await start(jest);
      t.equal(inJest.output, "0\n", `jest ${environment} ${inJest.errors}`);
    }
  },
);
