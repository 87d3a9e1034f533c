// Tests of the commands that exit on their own: their output and exit codes.

import { once } from "node:events";
import { readFileSync } from "node:fs";
import { type AddressInfo, createServer } from "node:net";
import { fileURLToPath } from "node:url";
import t from "tap";
import { parsePasswordHash } from "../../src/broker/passwords.ts";
import { helpText } from "../../src/config/help.ts";
import { loadConfig } from "../../src/config/load.ts";
import { CONFIG_KEYS } from "../../src/config/schema.ts";
import { type Invocation, jindou } from "./jindou.ts";

const VERSION = JSON.parse(
  readFileSync(new URL("../../package.json", import.meta.url), "utf8"),
).version;

t.test("--help and --version print to standard output and exit with 0", async (t) => {
  const [help, version] = await Promise.all([jindou(t, ["--help"]), jindou(t, ["--version"])]);
  t.match(help, { code: 0, stdout: helpText(), stderr: "" });
  t.match(version, { code: 0, stdout: `${VERSION}\n`, stderr: "" });
});

/** Listen addresses with ports that the system selects. */
const FREE_ADDRESSES = {
  JINDOU_API_LISTEN: "127.0.0.1:0",
  JINDOU_CLIENT_LISTEN: "127.0.0.1:0",
};

t.test("check-config exits with 0 for a valid configuration", async (t) => {
  const env = { ...FREE_ADDRESSES, JINDOU_LOG_LEVEL: "warn" };
  t.match(await jindou(t, ["check-config"], { env }), { code: 0, stderr: "" });
});

t.test("check-config reports unusable files, folders and listen addresses", async (t) => {
  const file = fileURLToPath(import.meta.url);
  const { code, stderr } = await jindou(t, ["check-config"], {
    env: {
      JINDOU_API_LISTEN: "192.0.2.1:0",
      JINDOU_ADMIN_PASSWORD: "hunter2",
      JINDOU_CLIENT_LISTEN: "127.0.0.1:0",
      JINDOU_CLIENT_TLS_CERT_FILE: "/no/such.pem",
      JINDOU_CLIENT_TLS_KEY_FILE: "/no/such.key",
      JINDOU_STORE_PATH: `${file}/data`,
    },
  });
  t.equal(code, 2);
  const lines = stderr.trimEnd().split("\n");
  t.equal(lines.length, 3, stderr);
  for (const name of ["CLIENT_TLS_", "STORE_PATH", "API_LISTEN"])
    t.ok(
      lines.some((line) => line.includes(`(JINDOU_${name}`)),
      `one message names JINDOU_${name}`,
    );
});

t.test("check-config only warns about an address in use and exits with 0", async (t) => {
  const server = createServer().listen(0, "127.0.0.1");
  t.teardown(() => server.close());
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  const env = { ...FREE_ADDRESSES, JINDOU_API_LISTEN: `127.0.0.1:${port}` };
  const { code, stderr } = await jindou(t, ["check-config"], { env });
  t.equal(code, 0);
  t.match(stderr, /^jindou: warning: api\.listen .*\n$/);
});

t.test(
  "jindou prints one sentence per problem and exits with 2 if arguments, input or settings are invalid",
  async (t) => {
    const cases: readonly [readonly string[], Invocation, number][] = [
      [["serve"], {}, 1],
      [["check-config", "--config=/no/such.json"], {}, 1],
      [["check-config"], { env: { JINDOU_A: "1", JINDOU_B: "1" } }, 2],
      [["start", "--api.listen=0.0.0.0:0"], {}, 1],
      [["hash-password"], { input: "\n" }, 1],
    ];
    const results = await Promise.all(
      cases.map(([argv, invocation]) => jindou(t, argv, invocation)),
    );
    for (const [index, { code, stdout, stderr }] of results.entries()) {
      const name = cases[index]?.[0].join(" ");
      t.equal(code, 2, name ?? "");
      t.equal(stdout, "", "standard output is empty");
      const lines = stderr.trimEnd().split("\n");
      t.equal(lines.length, cases[index]?.[2], stderr);
      for (const line of lines) t.match(line, /^jindou: .*[.?]$/);
    }
  },
);

t.test(
  "print-config prints the merged configuration and its sources, with secrets masked",
  async (t) => {
    const env = { JINDOU_ADMIN_PASSWORD: "hunter2", JINDOU_NODE_ID: "n1" };
    const argv = ["print-config", "--node.id", "n2"];
    const [text, json, sources] = await Promise.all([
      jindou(t, argv, { env }),
      jindou(t, [...argv, "--json"], { env }),
      jindou(t, [...argv, "--sources"], { env }),
    ]);
    for (const { code, stdout } of [text, json, sources]) {
      t.equal(code, 0);
      t.notMatch(stdout, /hunter2/);
    }
    const source = "the flag --node.id, which overrides the environment variable JINDOU_NODE_ID";
    t.ok(text.stdout.includes(`\nnode.id = "n2"  # ${source}\n`));
    const printed = JSON.parse(json.stdout);
    t.equal(printed.node.id, "n2");
    t.same(printed.client, loadConfig().client);
    const entries = JSON.parse(sources.stdout);
    t.equal(Object.keys(entries).length, CONFIG_KEYS.length, "each key has a source");
    t.same(entries["node.id"], { value: "n2", source });
    const { listen } = loadConfig().api;
    t.same(entries["api.listen"], { value: listen, source: "default" });
    t.match(entries["admin.password"], {
      source: "the environment variable JINDOU_ADMIN_PASSWORD",
    });
  },
);

t.test("hash-password prints a hash that `managers` accepts as passwordHash", async (t) => {
  const { code, stdout } = await jindou(t, ["hash-password"], {
    input: "correct horse\n",
  });
  t.equal(code, 0);
  t.notMatch(stdout, /horse/);
  t.ok(parsePasswordHash(stdout.trimEnd()));
  const account = { username: "a", passwordHash: stdout.trimEnd() };
  const env = { JINDOU_MANAGERS: JSON.stringify([account]) };
  t.equal(loadConfig({ env }).managers[0]?.passwordHash, stdout.trimEnd());
});
