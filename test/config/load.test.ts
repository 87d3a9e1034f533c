// Tests of loading a whole configuration: its sources, their precedence, and invalid settings.

import { ConfigError } from "../../src/config/errors.ts";
import { loadConfig } from "../../src/config/load.ts";
import type { Sources } from "../../src/config/sources.ts";
import { t } from "../support/suite.ts";

/** Returns a function that reads the files in `contents`, by path. Other files do not exist. */
function readerOf(contents: Record<string, unknown>) {
  return (path: string) => {
    const content = contents[path];
    if (content === undefined) throw new Error(`ENOENT: ${path}`);
    return typeof content === "string" ? content : JSON.stringify(content);
  };
}

/** Loads the configuration and returns its problems, an empty array if there are none. */
function problemsOf(sources: Sources): readonly string[] {
  try {
    loadConfig(sources);
  } catch (error) {
    if (error instanceof ConfigError) return error.problems;
    throw error;
  }
  return [];
}

t.test(
  "without any settings, the configuration is that of a single node with the embedded store",
  async (t) => {
    const config = loadConfig();
    t.equal(config.api.listen, "127.0.0.1:5001");
    t.equal(config.client.listen, "0.0.0.0:5200");
    t.equal(config.redis.url, "", "Redis is not used");
    t.equal(config.store.path, "./data");
    t.equal(config.auth.clients, "token");
    t.same(config.managers, []);
  },
);

t.test(
  "flags override the environment, the environment overrides the file, and the file overrides the defaults",
  async (t) => {
    const readFile = readerOf({
      "c.json": { log: { level: "warn" }, node: { id: "file" } },
    });
    const file = { file: "c.json", readFile };
    const env = { JINDOU_LOG_LEVEL: "error" };
    const flags = [{ name: "log.level", value: "debug" }];
    t.equal(loadConfig(file).log.level, "warn");
    t.equal(loadConfig({ ...file, env }).log.level, "error");
    const config = loadConfig({ ...file, env, flags });
    t.equal(config.log.level, "debug");
    t.equal(config.node.id, "file", "a key that only the file sets has the value of the file");
    t.equal(config.drain.timeoutMs, 10_000, "a key that no source sets has its default");
  },
);

t.test(
  "JINDOU_CONFIG names the configuration file unless the command line names a file",
  async (t) => {
    const readFile = readerOf({
      "env.json": { node: { id: "env" } },
      "flag.json": { node: { id: "flag" } },
    });
    const env = { JINDOU_CONFIG: "env.json" };
    t.equal(loadConfig({ env, readFile }).node.id, "env");
    t.equal(loadConfig({ env, readFile, file: "flag.json" }).node.id, "flag");
  },
);

t.test("only the last value of a flag that is set twice is used and validated", async (t) => {
  const flags = [
    { name: "log.level", value: "loud" },
    { name: "log.level", value: "warn" },
  ];
  t.equal(loadConfig({ flags }).log.level, "warn");
});

t.test(
  "the text of an environment variable is parsed as a number, list or object according to the type of its key",
  async (t) => {
    const env = {
      JINDOU_CLIENT_IDLE_TIMEOUT_S: "30",
      JINDOU_CLIENT_ALLOWED_ORIGINS: "https://a.example, *.b.example,",
      JINDOU_MANAGERS: '[{"username":"ops","password":"x"}]',
      JINDOU_NODE_ID: "17",
    };
    const config = loadConfig({ env });
    t.equal(config.client.idleTimeoutS, 30);
    t.same(config.client.allowedOrigins, ["https://a.example", "*.b.example"]);
    t.equal(config.node.id, "17", "the value of a text key is not converted to a number");
    t.match(config.managers, [{ username: "ops", role: "viewer", permissions: [] }]);
  },
);

t.test("nested keys can be set in the environment", async (t) => {
  const env = {
    JINDOU_API_TLS_CERT_FILE: "/tls/cert.pem",
    JINDOU_API_TLS_KEY_FILE: "/tls/key.pem",
  };
  t.equal(loadConfig({ env }).api.tls.certFile, "/tls/cert.pem");
  t.equal(loadConfig({ env }).api.tls.keyFile, "/tls/key.pem");
});

t.test("the loaded configuration is deeply frozen, including its lists", async (t) => {
  const env = { JINDOU_MANAGERS: '[{"username":"ops","password":"x"}]' };
  const config = loadConfig({ env });
  t.throws(() => Object.assign(config, { api: {} }), TypeError);
  t.throws(() => Object.assign(config.api.tls, { keyFile: "x" }), TypeError);
  t.throws(() => Object.assign(config.managers, [1]), TypeError);
  t.throws(() => Object.assign(config.managers[0] ?? {}, { role: "admin" }), TypeError);
});

t.test("two loaded configurations share no objects", async (t) => {
  t.not(loadConfig().client.tls, loadConfig().client.tls);
});

t.test("an unknown key in the configuration file is rejected with a suggestion", async (t) => {
  const readFile = readerOf({ "c.json": { client: { idleTimeout: 3 } } });
  const problems = problemsOf({ file: "c.json", readFile });
  t.match(problems, [/client\.idleTimeout\b.*client\.idleTimeoutS/]);
});

t.test("an unknown section in the configuration file is rejected with a suggestion", async (t) => {
  const readFile = readerOf({ "c.json": { apis: { listen: ":1" } } });
  const problems = problemsOf({ file: "c.json", readFile });
  t.match(problems, [/apis.*did you mean api\?/]);
});

t.test(
  "a configuration file is rejected if its content or one of its sections is not an object",
  async (t) => {
    const readFile = readerOf({ "c.json": { api: "127.0.0.1:1" } });
    t.match(problemsOf({ file: "c.json", readFile }), [/^api in/]);
    const list = readerOf({ "c.json": [] });
    t.equal(problemsOf({ file: "c.json", readFile: list }).length, 1);
  },
);

t.test(
  "a configuration file that is missing or not valid JSON is reported once, and its text is not quoted",
  async (t) => {
    t.match(problemsOf({ file: "no.json", readFile: readerOf({}) }), [/no\.json/]);
    const readFile = readerOf({ "c.json": '{\n "admin": {"password": hunter2}}' });
    const problems = problemsOf({ file: "c.json", readFile });
    t.equal(problems.length, 1);
    t.notMatch(problems[0], /hunter/);
  },
);

t.test(
  "an unknown environment variable that begins with JINDOU_ is rejected with a suggestion",
  async (t) => {
    const problems = problemsOf({ env: { JINDOU_API_LISTENS: ":1" } });
    t.match(problems, [/JINDOU_API_LISTENS.*JINDOU_API_LISTEN\?/]);
    t.same(problemsOf({ env: { OTHER_API_LISTENS: ":1" } }), []);
  },
);

t.test("variables that Kubernetes sets for a Service named jindou are ignored", async (t) => {
  const env = {
    JINDOU_SERVICE_HOST: "10.0.0.1",
    JINDOU_SERVICE_PORT: "5001",
    JINDOU_SERVICE_PORT_HTTP: "5001",
    JINDOU_PORT: "tcp://10.0.0.1:5001",
    JINDOU_PORT_5001_TCP: "tcp://10.0.0.1:5001",
    JINDOU_PORT_5001_TCP_ADDR: "10.0.0.1",
    JINDOU_CLIENT_PORT_5200_TCP_PROTO: "tcp",
  };
  t.same(problemsOf({ env }), []);
  t.equal(problemsOf({ env: { JINDOU_API_PORT: "5001" } }).length, 1);
});

t.test("an empty environment variable counts as not set", async (t) => {
  const env = { JINDOU_DRAIN_TIMEOUT_MS: "", JINDOU_ADMIN_PASSWORD: "" };
  t.equal(loadConfig({ env }).drain.timeoutMs, 10_000);
});

t.test("a secret can be read from a file, and the newline at its end is removed", async (t) => {
  const readFile = readerOf({ "/run/admin": "pass word\n", "/run/none": "\n" });
  const env = { JINDOU_ADMIN_PASSWORD_FILE: "/run/admin" };
  t.equal(loadConfig({ env, readFile }).admin.password, "pass word");
  for (const path of ["/run/none", "/run/missing"]) {
    const env = { JINDOU_ADMIN_PASSWORD_FILE: path };
    t.equal(problemsOf({ env, readFile }).length, 1, path);
  }
});

t.test(
  "setting both a secret and its file is rejected, and keys that are not secret cannot be read from a file",
  async (t) => {
    const readFile = readerOf({ f: "x" });
    const both = { JINDOU_API_TOKEN: "a", JINDOU_API_TOKEN_FILE: "f" };
    t.equal(problemsOf({ env: both, readFile }).length, 1);
    const level = { JINDOU_LOG_LEVEL_FILE: "f" };
    t.match(problemsOf({ env: level, readFile }), [/JINDOU_LOG_LEVEL\?/]);
  },
);

t.test(
  "an environment variable with an invalid value is rejected, and the message names the variable",
  async (t) => {
    const invalid: readonly [string, string][] = [
      ["JINDOU_DRAIN_TIMEOUT_MS", "10s"],
      ["JINDOU_DRAIN_TIMEOUT_MS", "1.5"],
      ["JINDOU_DRAIN_TIMEOUT_MS", "1e3"],
      ["JINDOU_CLIENT_IDLE_TIMEOUT_S", "7"],
      ["JINDOU_CLIENT_IDLE_TIMEOUT_S", "961"],
      ["JINDOU_AUTH_CLIENTS", "None"],
      ["JINDOU_NODE_ID", "a b"],
      ["JINDOU_MANAGERS", "admin"],
      ["JINDOU_MANAGERS", "{}"],
    ];
    for (const [name, value] of invalid) {
      const problems = problemsOf({ env: { [name]: value } });
      t.match(
        problems,
        [new RegExp(name)],
        `${name}=${value} is rejected with the name of the variable`,
      );
    }
  },
);

t.test("a quoted number in the configuration file is rejected", async (t) => {
  const readFile = readerOf({ "c.json": { drain: { timeoutMs: "10" } } });
  const problems = problemsOf({ file: "c.json", readFile });
  t.match(problems, [/drain\.timeoutMs.*integer from 0 to 600000/]);
});

t.test(
  "all problems of all sources are reported together, without the values of secrets",
  async (t) => {
    const readFile = readerOf({
      "c.json": { log: { level: 3 }, api: { token: 12_345 } },
    });
    const env = { JINDOU_NONSENSE: "1", JINDOU_NODE_ID: "a b" };
    const flags = [{ name: "api.lisen", value: ":1" }];
    const problems = problemsOf({ file: "c.json", readFile, env, flags });
    t.equal(problems.length, 5);
    t.notMatch(problems.join(), /12345/);
  },
);

t.test("a problem with a manager account is reported with the account's index", async (t) => {
  const cases: readonly [unknown, RegExp][] = [
    [{ username: "a", pasword: "x" }, /managers\[0\].*password\?/],
    [{ username: "a", password: "x", role: "boss" }, /managers\[0\]\.role/],
    [{ password: "x" }, /managers\[0\]/],
    [{ username: "a" }, /managers\[0\] needs/],
    [{ username: "a", password: "x", passwordHash: "y" }, /managers\[0\]/],
  ];
  for (const [account, expected] of cases) {
    const env = { JINDOU_MANAGERS: JSON.stringify([account]) };
    t.match(problemsOf({ env }), [expected]);
  }
  const account = { username: "a", password: "x" };
  const env = { JINDOU_MANAGERS: JSON.stringify([account, account]) };
  t.match(problemsOf({ env }), [/more than once/]);
});

t.test(
  "if the process has no permission to read a file, the error names the user who needs the permission",
  async (t) => {
    const readFile = () => {
      throw Object.assign(new Error("EACCES: permission denied, open 'f'"), { code: "EACCES" });
    };
    const sentence = new RegExp(
      `cannot be read: EACCES.*\\. This process runs as user ${process.getuid?.()}, who must be allowed`,
    );
    t.match(problemsOf({ env: { JINDOU_API_TOKEN_FILE: "f" }, readFile })[0], sentence);
    t.match(problemsOf({ file: "f", readFile })[0], sentence);
  },
);
