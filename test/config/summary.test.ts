// Tests of the start banner and of the masked configuration that `print-config` prints.

import { loadConfig, loadSourcedConfig } from "../../src/config/load.ts";
import { CONFIG_KEYS } from "../../src/config/schema.ts";
import { configJson, configText, MASK, startSummary } from "../../src/config/summary.ts";
import { t } from "../support/suite.ts";

const ports = { apiPort: 4001, clientPort: 4002 };

t.test(
  "the start banner shows the actual port of each listener and the credential that it requires",
  async (t) => {
    const text = startSummary(loadConfig(), ports, "1.2.3");
    t.match(text, /http:\/\/127\.0\.0\.1:4001 .*no credential/);
    t.match(text, /ws:\/\/0\.0\.0\.0:4002 .*token/);
    t.match(text, "http://127.0.0.1:4001/metrics");
    t.match(text, "http://127.0.0.1:4001/demo/");
    t.match(text, "http://127.0.0.1:4001/console/");
    t.match(text, "1.2.3");
  },
);

t.test(
  "the start banner shows TLS, IPv6 addresses and that a credential is required",
  async (t) => {
    const env = {
      JINDOU_API_LISTEN: "[::]:1",
      JINDOU_API_TOKEN: "hunter2-hunter2-hunter2",
      JINDOU_AUTH_CLIENTS: "none",
      JINDOU_CLIENT_ALLOWED_ORIGINS: "https://chat.example.com",
      JINDOU_CLIENT_TLS_CERT_FILE: "c",
      JINDOU_CLIENT_TLS_KEY_FILE: "k",
    };
    const text = startSummary(loadConfig({ env }), ports, "1");
    t.match(text, /http:\/\/\[::\]:4001 .*credential required/);
    t.match(text, "wss://");
    t.notMatch(text, "4001/demo/");
    t.match(text, "http://[::]:4001/console/");
    t.notMatch(text, /hunter2/);
  },
);

t.test("the start banner of a node on Redis does not show the Redis address", async (t) => {
  const env = { JINDOU_REDIS_URL: "redis://:hunter2@10.0.0.1:7000" };
  const text = startSummary(loadConfig({ env }), ports, "1");
  t.match(text, /data +Redis, keys jd:/);
  t.notMatch(text, /hunter2|10\.0\.0\.1/);
});

t.test(
  "the displayed configuration masks every secret that is set and shows all other values",
  async (t) => {
    const env = {
      JINDOU_API_TOKEN: "hunter2",
      JINDOU_CLIENT_TLS_CERT_FILE: "c",
      JINDOU_CLIENT_TLS_KEY_FILE: "k",
      JINDOU_CLIENT_TLS_PASSPHRASE: "hunter2",
      JINDOU_MANAGERS:
        '[{"username":"ops","password":"hunter2"},{"username":"dev","passwordHash":"hunter2"}]',
      JINDOU_REDIS_URL: "redis://:hunter2@localhost",
    };
    const config = loadConfig({ env });
    const json = configJson(config);
    t.notMatch(json, /hunter2/);
    const masked = JSON.parse(json);
    t.match(masked, {
      api: { token: MASK, listen: "127.0.0.1:5001" },
      admin: { password: "" },
      redis: { url: MASK, prefix: "jd" },
      managers: [
        { username: "ops", password: MASK, passwordHash: "" },
        { username: "dev", password: "", passwordHash: MASK },
      ],
      client: { tls: { passphrase: MASK } },
    });
    t.equal(config.api.token, "hunter2", "the configuration itself is not changed");
  },
);

t.test("a configuration without secrets is displayed unchanged", async (t) => {
  t.same(JSON.parse(configJson(loadConfig())), loadConfig());
});

t.test("each value is displayed with its source and the sources that it overrides", async (t) => {
  const files: Readonly<Record<string, string>> = {
    "a.json": '{"node":{"id":"n1"},"client":{"maxConnections":7}}',
    "/run/secrets/token": "hunter2-hunter2",
  };
  const sourced = loadSourcedConfig({
    file: "a.json",
    env: { JINDOU_NODE_ID: "n2", JINDOU_API_TOKEN_FILE: "/run/secrets/token" },
    flags: [{ name: "node.id", value: "n3" }],
    readFile: (path) => files[path] ?? "",
  });
  const lines = configText(sourced).trimEnd().split("\n");
  t.notMatch(lines.join("\n"), /hunter2/);
  for (const line of [
    'node.id = "n3"  # the flag --node.id, which overrides the environment variable JINDOU_NODE_ID and a.json',
    "client.maxConnections = 7  # a.json",
    `api.token = "${MASK}"  # the file /run/secrets/token that JINDOU_API_TOKEN_FILE names`,
    'api.listen = "127.0.0.1:5001"  # default',
  ])
    t.ok(lines.includes(line), line);
  t.equal(lines.length, CONFIG_KEYS.length, "every key has a line");
});
