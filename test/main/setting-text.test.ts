// Values of settings that shells, env files and editors have changed, from every source: the
// configuration file, environment variables, files of secrets, flags and standard input.

import { existsSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import t, { type Test } from "tap";
import { type Invocation, jindou, spawnJindou } from "./jindou.ts";

const BOM = "\uFEFF";
const LISTEN = { JINDOU_API_LISTEN: "127.0.0.1:0", JINDOU_CLIENT_LISTEN: "127.0.0.1:0" };

async function temporaryFolder(t: Test): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), "jindou-text-"));
  t.teardown(() => rm(folder, { recursive: true, force: true }));
  return folder;
}

/** Runs a command that must exit with 2 and returns the lines on standard error. */
async function problemsOf(
  t: Test,
  argv: readonly string[],
  invocation: Invocation = {},
): Promise<readonly string[]> {
  const { code, stdout, stderr } = await jindou(t, argv, invocation);
  t.equal(code, 2, stderr);
  t.equal(stdout, "");
  return stderr.trimEnd().split("\n");
}

/** A fault in a value, and the words that the message about the fault contains. */
type Fault = readonly [change: (text: string) => string, words: RegExp];
const FAULTS: readonly [Fault, ...Fault[]] = [
  [(text) => `"${text}"`, /has quotes around it/],
  [(text) => `'${text}'\r`, /has quotes around it/],
  [(text) => `“${text}”`, /has quotes around it/],
  [(text) => ` ${text}`, /begins with a space/],
  [(text) => `${text} \r\n`, /ends with a space/],
  [(text) => `${text}\t`, /ends with a tab/],
  [(text) => `${text}\u00A0`, /ends with the invisible character U\+00A0/],
  [(text) => `\u200B${text}`, /begins with the invisible character U\+200B/],
  [(text) => `${text}${BOM}`, /ends with the invisible character U\+FEFF/],
  [(text) => `${text}\n${text}`, /contains a line break/],
  [(text) => `${text}\uFFFD`, /is not valid UTF-8/],
];

/**
 * Number of rounds. Each setting has a different fault in each round, and all rounds together try
 * every fault.
 */
const ROUNDS = 3;
/** Settings of every kind, each with a value that is valid without a fault. */
const TEXTS: readonly (readonly [key: string, variable: string, text: string])[] = [
  ["store.path", "JINDOU_STORE_PATH", "/data/x"],
  ["client.tls.certFile", "JINDOU_CLIENT_TLS_CERT_FILE", "/tls/cert.pem"],
  ["api.listen", "JINDOU_API_LISTEN", "127.0.0.1:0"],
  ["log.level", "JINDOU_LOG_LEVEL", "warn"],
  ["redis.prefix", "JINDOU_REDIS_PREFIX", "jd"],
];
const SECRETS: typeof TEXTS = [
  ["api.token", "JINDOU_API_TOKEN", "hunter2"],
  ["admin.password", "JINDOU_ADMIN_PASSWORD", "hunter2"],
  ["redis.url", "JINDOU_REDIS_URL", "redis://:hunter2@redis:6379"],
];

function nested(key: string, value: unknown): object {
  return key.split(".").reduceRight<unknown>((child, name) => ({ [name]: child }), value) as object;
}

t.test(
  "a value in quotes, or with a space or an invisible character at its beginning or end, is refused, whatever its source",
  async (t) => {
    const folder = await temporaryFolder(t);
    const all = [...TEXTS, ...SECRETS];
    for (let round = 0; round < ROUNDS; round++) {
      const faultOf = (key: string) => {
        const place = all.findIndex(([name]) => name === key) + round * 4;
        return FAULTS[place % FAULTS.length] ?? FAULTS[0];
      };
      const changed = ([key, , text]: (typeof all)[number]) => faultOf(key)[0](text);
      const secretFiles: Record<string, string> = {};
      for (const secret of SECRETS) {
        const path = join(folder, `${round}-${secret[0]}`);
        await writeFile(path, changed(secret));
        secretFiles[`${secret[1]}_FILE`] = path;
      }
      const file = join(folder, `${round}.json`);
      const members = TEXTS.map((text) => nested(text[0], changed(text)));
      await writeFile(file, JSON.stringify(Object.assign({}, ...members)));
      const env = Object.fromEntries(all.map((text) => [text[1], changed(text)]));
      const flags = all.map((text) => `--${text[0]}=${changed(text)}`);
      const [fromEnv, fromFlags, fromFiles, fromFile] = await Promise.all([
        problemsOf(t, ["check-config"], { env }),
        problemsOf(t, ["check-config", ...flags]),
        problemsOf(t, ["check-config"], { env: secretFiles }),
        problemsOf(t, ["check-config", "--config", file]),
      ]);
      for (const [lines, texts] of [
        [fromEnv, all],
        [fromFlags, all],
        [fromFiles, SECRETS],
        [fromFile, TEXTS],
      ] as const) {
        t.equal(lines.length, texts.length, lines.join("\n"));
        for (const [key] of texts)
          t.match(
            lines.find((line) => line.includes(`${key} (from `)),
            faultOf(key)[1],
            key,
          );
        t.notMatch(lines.join(), /hunter2/, "no secret is shown");
      }
    }
    t.notOk(existsSync('"'), "no folder with a quote in its name was created");
  },
);

t.test("the error about a refused value shows the value unless it is secret", async (t) => {
  const env = { JINDOU_STORE_PATH: '"/data/x"', JINDOU_API_TOKEN: '"hunter2"' };
  const [path, token] = await problemsOf(t, ["start"], { env });
  t.match(path, /^jindou: store\.path \(from the environment variable JINDOU_STORE_PATH\) has/);
  t.ok(path?.endsWith(String.raw` The value is "\"/data/x\"".`));
  t.match(token, /^jindou: api\.token .*\. Remove the quotes\.$/);
});

t.test(
  "a path in the syntax of a shell, of Windows or of another program is refused, whatever its source",
  async (t) => {
    const folder = await temporaryFolder(t);
    const file = join(folder, "c.json");
    const paths = [
      ...["~/data", "$HOME/data", `\${HOME}/data`, "/data/~", "file:///data"],
      ...["%h/data", "/srv/%i", String.raw`%APPDATA%\jindou`, "{{ data_dir }}"],
      ...[String.raw`C:\data`, "C:/Program Files/Git/data", String.raw`\\server\share`],
      ...[String.raw`data\jindou`, String.raw`.\data`],
    ];
    for (const path of paths) {
      await writeFile(file, JSON.stringify({ store: { path }, redis: { caFile: path } }));
      const env = {
        ...{ JINDOU_STORE_PATH: path, JINDOU_MIGRATE_FROM: path },
        ...{ JINDOU_API_TLS_KEY_FILE: path, JINDOU_ADMIN_PASSWORD_FILE: path, JINDOU_CONFIG: path },
      };
      const results = await Promise.all([
        problemsOf(t, ["check-config"], { env }),
        problemsOf(t, ["check-config", `--store.path=${path}`, `--config=${path}`]),
        problemsOf(t, ["check-config", "--config", file]),
        problemsOf(t, ["migrate", `--from=${path}`, "--to=redis://127.0.0.1:1"]),
      ]);
      t.same(
        results.map((lines) => lines.length),
        [5, 2, 2, 1],
        results.flat().join("\n"),
      );
      for (const line of results.flat())
        t.ok(
          line.endsWith(` The value is ${JSON.stringify(path)}.`),
          `the value is shown: ${line}`,
        );
    }
  },
);

t.test("a path may contain a backslash, a colon or a brace", async (t) => {
  const folder = await temporaryFolder(t);
  for (const name of [String.raw`jindou@a\x2db.service`, "a:b", "{a}"]) {
    const env = { JINDOU_STORE_PATH: join(folder, name) };
    const { code, stderr } = await jindou(t, ["print-config"], { env });
    t.equal(code, 0, stderr);
  }
});

t.test("a secret that is not a path may contain ~, $ and inner quotes", async (t) => {
  const env = {
    ...{ JINDOU_API_TOKEN: `$a~'b"`, JINDOU_ADMIN_PASSWORD: `"a"b` },
    JINDOU_REDIS_URL: "redis://:$a~@redis",
  };
  const { code, stderr } = await jindou(t, ["print-config"], { env });
  t.equal(code, 0, stderr);
});

t.test("a BOM before a value and newlines after it are removed, whatever its source", async (t) => {
  const folder = await temporaryFolder(t);
  const [token, config] = [join(folder, "token"), join(folder, "c.json")];
  const data = join(folder, "data");
  await writeFile(token, `${BOM}s3cret\r\n\n`);
  await writeFile(config, `${BOM}${JSON.stringify({ store: { path: `${data}\r\n` } })}\r\n`);
  const env = {
    ...{ ...LISTEN, JINDOU_CONFIG: `${config}\r`, JINDOU_API_TOKEN_FILE: `${token}\r` },
    ...{ JINDOU_LOG_LEVEL: "info\r\n", JINDOU_DRAIN_TIMEOUT_MS: "100\r", JINDOU_NODE_ID: "\r" },
    JINDOU_CLIENT_ALLOWED_ORIGINS: `${BOM}https://a.example,https://b.example\r`,
  };
  const node = spawnJindou(t, ["start"], { env });
  const { apiPort } = await node.logged("The node is ready");
  t.ok(existsSync(join(data, "lmdb")), "the data is in the configured folder");
  const statusOf = async (token: string) => {
    const url = `http://127.0.0.1:${apiPort}/user/onlinestatus`;
    const response = await fetch(url, {
      method: "POST",
      headers: { token, "content-type": "application/json" },
      body: "[]",
    });
    return response.status;
  };
  t.equal(await statusOf("s3cret"), 200);
  t.equal(await statusOf("other"), 401);
  node.child.kill("SIGTERM");
  t.equal((await node.exit).code, 0);
});

t.test("a password on standard input is checked like a password in a setting", async (t) => {
  for (const [input, words] of [
    ['"horse"\n', /has quotes around it/],
    ["horse \n", /ends with a space/],
    ["horse\nstaple\n", /contains a line break/],
  ] as const) {
    const [line = ""] = await problemsOf(t, ["hash-password"], { input });
    t.match(line, words);
    t.notMatch(line, /horse/);
  }
  const { code } = await jindou(t, ["hash-password"], { input: `${BOM}horse\r\n\n` });
  t.equal(code, 0);
});

t.test(
  "values in the `managers` setting are checked, and error messages contain no passwords",
  async (t) => {
    const managers = [{ username: " ops", password: "hunter2 ", permissions: ["*\r"] }];
    const text = JSON.stringify(managers);
    for (const [argv, env] of [
      [["check-config"], { JINDOU_MANAGERS: text }],
      [["check-config", `--managers=${text}`], {}],
    ] as const) {
      const lines = await problemsOf(t, argv, { env });
      t.match(lines, [
        /managers\[0\]\.username .* The value is " ops"\.$/,
        /managers\[0\]\.password .*ends with/,
      ]);
      t.equal(lines.length, 2, "the CR at the end of a permission is removed");
      t.notMatch(lines.join(), /hunter2/);
    }
    const quoted = await problemsOf(t, ["check-config"], { env: { JINDOU_MANAGERS: `'${text}'` } });
    t.match(quoted, [/^jindou: managers .* has quotes around it/]);
    t.notMatch(quoted.join(), /hunter2/);
  },
);

t.test(
  "a key that occurs more than once is refused, and the error names the key and, in a file, its lines",
  async (t) => {
    const folder = await temporaryFolder(t);
    const file = join(folder, "c.json");
    const cases: readonly (readonly [text: string, words: RegExp])[] = [
      [
        '{\n "api": { "token": "hunter2" },\n "log": {},\n "api": { "listen": "0.0.0.0:1" }\n}',
        /the key api more than once \(lines 2, 4\)/,
      ],
      [
        '{"client": {\n"tls": {"certFile": "a",\r\n"certFile": "b",\n"certFile": "c"}}}',
        /the key client\.tls\.certFile more than once \(lines 2, 3, 4\)/,
      ],
      [
        '{"managers": [{"username": "a",\n"password": "hunter2", "p\\u0061ssword": ""}]}',
        /the key managers\[0\]\.password more than once \(line 2\)/,
      ],
    ];
    for (const [text, words] of cases) {
      await writeFile(file, text);
      const lines = await problemsOf(t, ["start", "--config", file]);
      t.ok(
        lines.some((line) => line.includes(file) && words.test(line)),
        lines.join("\n"),
      );
      t.notMatch(lines.join(), /hunter2/);
    }
    const managers = '[{"username": "a", "password": "hunter2", "password": "b"}]';
    const lines = await problemsOf(t, ["check-config"], { env: { JINDOU_MANAGERS: managers } });
    t.match(lines, [/JINDOU_MANAGERS\) has the key \[0\]\.password more than once/]);
  },
);

t.test(
  "a configuration file that is not JSON in UTF-8 is refused, and JSON errors name the line",
  async (t) => {
    const folder = await temporaryFolder(t);
    const file = join(folder, "c.json");
    const cases: readonly (readonly [text: string | Buffer, words: RegExp])[] = [
      ["", /not valid JSON \(line 1\)/],
      ['{\n "log": {}\n', /not valid JSON \(line 2\)/],
      ['{\n "log": {},\n}', /not valid JSON \(line 3\)/],
      ['{\n // a comment\n "log": {}}', /not valid JSON \(line 2\)/],
      ['{"admin": {\n"password": hunter2}}', /not valid JSON \(line 2\)/],
      ["[".repeat(100_000), /not valid JSON \(line 1\)/],
      [Buffer.from('\uFEFF{"log": {}}', "utf16le"), /not valid UTF-8/],
      [Buffer.from('{"node": {"id": "\xE9"}}', "latin1"), /not valid UTF-8/],
    ];
    for (const [text, words] of cases) {
      await writeFile(file, text);
      const lines = await problemsOf(t, ["check-config", "--config", file]);
      t.match(lines, [words]);
      t.equal(lines.length, 1);
      t.notMatch(lines.join(), /hunter2/);
    }
  },
);
