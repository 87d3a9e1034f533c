// Tests of the rules that the schema of a single configuration key cannot express.

import { ConfigError } from "../../src/config/errors.ts";
import { loadConfig } from "../../src/config/load.ts";
import { t } from "../support/suite.ts";

/** A token of the minimum length for ports that other machines can reach. */
const TOKEN = "0123456789abcdef";

/** Loads a configuration with these flags and returns its problems. */
function problemsOf(flags: Record<string, string>): readonly string[] {
  try {
    loadConfig({
      flags: Object.entries(flags).map(([name, value]) => ({ name, value })),
    });
  } catch (error) {
    if (error instanceof ConfigError) return error.problems;
    throw error;
  }
  return [];
}

t.test("an invalid listen address is rejected", async (t) => {
  for (const listen of ["5001", "localhost", "::1:5001", "a:70000", "1.2.3:1"])
    t.match(problemsOf({ "api.listen": listen }), [/^api\.listen/], listen);
  for (const listen of [":0", "[::1]:5001", "localhost:5001"])
    t.same(problemsOf({ "api.listen": listen, "api.token": TOKEN }), [], listen);
});

t.test("an API that other machines can reach requires a configured credential", async (t) => {
  for (const listen of [":5001", "0.0.0.0:5001", "[::]:5001", "host:5001"]) {
    const withoutCredential = { "api.listen": listen };
    t.equal(problemsOf(withoutCredential).length, 1, listen);
    t.same(problemsOf({ ...withoutCredential, "api.token": TOKEN }), []);
    t.same(problemsOf({ ...withoutCredential, "admin.password": "p" }), []);
    const managers = '[{"username":"a","password":"p"}]';
    t.same(problemsOf({ ...withoutCredential, managers }), []);
  }
  t.same(problemsOf({ "api.listen": "127.0.0.1:5001" }), []);
  t.same(problemsOf({ "auth.api": "required" }), []);
});

t.test("the listener for WKProto needs an address of its own", async (t) => {
  const name = "protocol.wkproto.listen";
  for (const listen of ["5100", "1.2.3:1"])
    t.match(
      problemsOf({ [name]: listen }),
      [/^protocol\.wkproto\.listen must be host:port/],
      listen,
    );
  const own = { [name]: "0.0.0.0:5100" };
  t.same(problemsOf(own), []);
  t.same(problemsOf({ [name]: "127.0.0.1:0", "client.listen": "127.0.0.1:0" }), []);
  for (const key of ["client.listen", "api.listen", "api.compatListen"])
    t.match(problemsOf({ ...own, [key]: ":5100", "api.token": TOKEN }), [
      new RegExp(`^${name} must not be the same address as ${key}`),
    ]);
  t.match(problemsOf({ ...own, "protocol.wkproto.tls.certFile": "c" }), [/must be set together/]);
  t.match(problemsOf({ ...own, "protocol.wkproto.trustedProxies": "x" }), [
    /neither an IP address/,
  ]);
});

t.test(
  "a WKProto listener without authentication that other machines can reach must be allowed explicitly",
  async (t) => {
    const open = { "auth.clients": "none", "client.allowedOrigins": "https://a.example" };
    const listen = { "protocol.wkproto.listen": "0.0.0.0:5100" };
    t.match(problemsOf({ ...open, ...listen }), [/protocol\.wkproto\.allowUnauthenticated/]);
    t.same(problemsOf({ ...open, "protocol.wkproto.listen": "127.0.0.1:5100" }), []);
    const allowed = { "protocol.wkproto.allowUnauthenticated": "1" };
    t.same(problemsOf({ ...open, ...listen, ...allowed }), []);
  },
);

t.test(
  "an API token must have at least 16 characters unless the API listens on loopback only",
  async (t) => {
    const short = { "api.token": TOKEN.slice(1) };
    const problems = problemsOf({ ...short, "api.listen": ":5001", "admin.password": "p" });
    t.match(problems, [/^api\.token .*16 characters/]);
    t.notMatch(problems[0], short["api.token"], "the token is not shown");
    t.same(problemsOf(short), [], "a shorter token is accepted on loopback");
  },
);

t.test(
  "a client listener without authentication that other machines can reach needs allowed origins",
  async (t) => {
    const open = { "auth.clients": "none" };
    for (const listen of [":5200", "[::]:5200", "example.com:5200"])
      t.match(problemsOf({ ...open, "client.listen": listen }), [/client\.allowedOrigins/], listen);
    t.match(problemsOf(open), [/client\.allowedOrigins/], "the default address");
    t.same(problemsOf({ ...open, "client.allowedOrigins": "https://a.example" }), []);
    t.same(problemsOf({ ...open, "client.listen": "[::1]:5200" }), []);
  },
);

t.test(
  "a TLS certificate needs its key, and the other TLS settings need a certificate and a key",
  async (t) => {
    t.equal(problemsOf({ "client.tls.certFile": "c" }).length, 1);
    t.equal(problemsOf({ "client.tls.keyFile": "k" }).length, 1);
    t.equal(problemsOf({ "api.tls.caFile": "ca" }).length, 1);
    const both = { "client.tls.certFile": "c", "client.tls.keyFile": "k" };
    t.same(problemsOf(both), []);
  },
);

t.test("two listeners on the same address must have the same TLS settings", async (t) => {
  const shared = {
    "api.listen": "127.0.0.1:1",
    "client.listen": "127.0.0.1:1",
  };
  t.same(problemsOf(shared), []);
  const client = { "client.tls.certFile": "c", "client.tls.keyFile": "k" };
  t.equal(problemsOf({ ...shared, ...client }).length, 1);
  const api = { "api.tls.certFile": "c", "api.tls.keyFile": "k" };
  t.same(problemsOf({ ...shared, ...client, ...api }), []);
});

t.test("the frame, body and buffer limits must leave room for the largest payload", async (t) => {
  const payload = { "messages.maxPayloadBytes": "1000000" };
  t.match(problemsOf(payload), [/^client\.maxFrameBytes/, /^api\.maxBodyBytes/]);
  const limits = {
    "client.maxFrameBytes": "1048576",
    "api.maxBodyBytes": "2000000",
  };
  t.same(problemsOf({ ...payload, ...limits }), []);
  t.match(problemsOf({ "client.maxBufferedBytes": "20000" }), [/^client\.maxBufferedBytes/]);
  t.match(problemsOf({ "client.maxBufferedBytes": "10000000" }), [
    /^client\.maxBufferedBytesPerUser/,
  ]);
  t.match(problemsOf({ "client.maxBufferedBytesTotal": "8000000" }), [
    /^client\.maxBufferedBytesTotal/,
  ]);
});

t.test("an entry of client.allowedOrigins must be an origin or a host pattern", async (t) => {
  const web = "https://a.example,http://localhost:3000,*.a.example,HTTPS://B.example";
  const apps = "capacitor://localhost,tauri://localhost,chrome-extension://abcdefgh,null";
  t.same(problemsOf({ "client.allowedOrigins": `${web},${apps}` }), []);
  const invalid = ["a.example", "https://*.a.example", "*.", "https://", "capacitor://", "*"];
  for (const origin of [...invalid, "tauri://a/b", "https://a b.example", "Null", "https://[::1"])
    t.match(problemsOf({ "client.allowedOrigins": origin }), [/neither an origin/], origin);
});

t.test(
  "an entry of client.allowedOrigins that no browser sends is rejected with the entry to write instead",
  async (t) => {
    for (const [entry, sent] of [
      ["https://a.example:443", "https://a.example"],
      ["http://a.example:80", "http://a.example"],
      ["https://a.example/", "https://a.example"],
      ["https://a.example/chat?x", "https://a.example"],
      ["https://user@a.example", "https://a.example"],
      ["https://münchen.example", "https://xn--mnchen-3ya.example"],
      ["*.münchen.example", "*.xn--mnchen-3ya.example"],
      ["http://[0:0:0:0:0:0:0:1]:3000", "http://[::1]:3000"],
      ["http://127.1:3000", "http://127.0.0.1:3000"],
      ["ws://a.example:5200", "http://a.example:5200"],
      ["wss://a.example", "https://a.example"],
      ["file://localhost", "null"],
    ] as const) {
      const [problem = ""] = problemsOf({ "client.allowedOrigins": entry });
      t.ok(problem.endsWith(`which no browser sends; write ${sent}.`), problem);
    }
  },
);

t.test("the origin null cannot be allowed if clients do not authenticate", async (t) => {
  const settings = { "client.allowedOrigins": "https://a.example,null", "auth.clients": "none" };
  t.match(problemsOf(settings), [/any page could connect as any user/]);
});

for (const key of ["api.trustedProxies", "client.trustedProxies"])
  t.test(`an entry of ${key} must be an IP address or a network`, async (t) => {
    const valid = "10.0.0.5,10.0.0.0/8,0.0.0.0/0,::1,fd00::/8,2001:db8::1/128";
    t.same(problemsOf({ [key]: valid }), []);
    const invalid = ["10.0.0.0/33", "fd00::/129", "10.0.0.0/", "10.0.0.0/8/8", "10.0.0", "proxy"];
    for (const entry of [...invalid, "fe80::1%eth0", "::ffff:10.0.0.0/104", "10.0.0.0/-1"])
      t.match(problemsOf({ [key]: entry }), [new RegExp(`^${key} contains "${entry}"`)], entry);
  });

t.test("two listeners on the same address must trust the same proxies", async (t) => {
  const shared = { "api.listen": "127.0.0.1:5200", "client.listen": "127.0.0.1:5200" };
  const proxies = { "api.trustedProxies": "10.0.0.1,10.0.0.2" };
  t.match(problemsOf({ ...shared, ...proxies }), [/api\.trustedProxies and client\.trusted/]);
  const same = { ...proxies, "client.trustedProxies": "10.0.0.2,10.0.0.1" };
  t.same(problemsOf({ ...shared, ...same }), []);
});

t.test("an invalid Redis address is rejected, and the error does not quote it", async (t) => {
  const invalid = [
    "http://hunter2",
    "redis://h/path",
    "redis://",
    "redis://h,,x",
    "redis://u:hunter2%ZZ@h",
  ];
  for (const url of invalid) {
    const problems = problemsOf({ "redis.url": url });
    t.match(problems, [/^redis\.url must/], url);
    t.notMatch(problems.join(), /hunter2/);
  }
  const misread = ["redis://h?db=3", "redis://u:1?hunter2@h", "redis://u:1#hunter2@h", "h/3/4"];
  for (const url of misread) {
    const problems = problemsOf({ "redis.url": url });
    t.match(problems, [/redis\.url .* database/], url);
    t.notMatch(problems.join(), /hunter2/);
  }
  const valid = ["h", "h:7000", "redis://u:p@h:1/2", "rediss://h", "a:1, b:2"];
  for (const url of valid) t.same(problemsOf({ "redis.url": url }), [], url);
});

t.test("Redis addresses that differ in more than host and port are rejected", async (t) => {
  const sentinel = { "redis.sentinelName": "primary" };
  for (const [url, noun] of [
    ["redis://a/1,redis://b/2", "databases"],
    ["redis://a,redis://b/2,redis://c/0", "databases"],
    ["redis://u:hunter2@a,redis://u:hunter3@b", "passwords"],
    ["redis://u@a,redis://v@b", "users"],
    ["redis://a,rediss://b", "schemes"],
  ] as const) {
    const problems = problemsOf({ ...sentinel, "redis.url": url });
    t.match(problems, [new RegExp(`addresses in redis.url have different ${noun}`)], url);
    t.notMatch(problems.join(), /hunter/);
  }
  const same = ["redis://u:p@a/2,b,redis://u:p@c/2", "rediss://a,b"];
  for (const url of same) t.same(problemsOf({ ...sentinel, "redis.url": url }), [], url);
});

t.test("a database other than 0 is rejected for a Redis Cluster", async (t) => {
  const cluster = { "redis.cluster": "true" };
  t.match(problemsOf({ "redis.url": "redis://a/1,redis://b/1" }), [/has only database 0/]);
  t.match(problemsOf({ ...cluster, "redis.url": "redis://a/1" }), [/has only database 0/]);
  t.same(problemsOf({ ...cluster, "redis.url": "redis://a/0" }), []);
});

t.test("Redis settings that contradict each other are rejected", async (t) => {
  const url = { "redis.url": "redis://a:1,redis://b:2" };
  const sentinel = { ...url, "redis.sentinelName": "primary" };
  t.same(problemsOf(sentinel), []);
  t.match(problemsOf({ ...sentinel, "redis.cluster": "true" }), [/contradict/]);
  t.match(problemsOf({ ...url, "redis.sentinelPassword": "p" }), [/sentinelName/]);
  t.match(problemsOf({ ...url, "redis.caFile": "ca.pem" }), [/rediss/]);
});

t.test("a hook with an invalid URL, secret, header or channel pattern is rejected", async (t) => {
  const secret = `whsec_${Buffer.alloc(32, 1).toString("base64")}`;
  for (const name of ["connect", "send"]) {
    const settings = {
      [`hooks.${name}.url`]: "https://app.example/hook",
      [`hooks.${name}.secret`]: secret,
    };
    t.same(problemsOf(settings), []);
    for (const url of ["app.example", "ftp://a/", "http://u:p@a/", "http://a/#b"])
      t.match(problemsOf({ ...settings, [`hooks.${name}.url`]: url }), [/is not a URL/], url);
    for (const wrong of [
      "",
      "whsec_",
      "whsec_c2hvcnQ=",
      secret.slice(6),
      `${secret}!`,
      `whsec_${"A".repeat(120)}`,
    ]) {
      const problems = problemsOf({ ...settings, [`hooks.${name}.secret`]: wrong });
      t.match(problems, [/secret must be whsec_/], wrong);
      if (wrong !== "")
        t.notMatch(problems.join(), wrong.slice(6, 20) || "none", "the secret is not shown");
    }
    for (const header of ["webhook-id", "Content-Length", "a b", ""])
      t.equal(
        problemsOf({
          ...settings,
          [`hooks.${name}.staticHeaders`]: JSON.stringify([{ name: header, value: "x" }]),
        }).length,
        1,
        header,
      );
    const value = JSON.stringify([{ name: "x-a", value: "line\nbreak" }]);
    t.equal(problemsOf({ ...settings, [`hooks.${name}.staticHeaders`]: value }).length, 1);
  }
  t.match(problemsOf({ "hooks.connect.forwardHeaders": "cookie,host" }), [/"host"/]);
  for (const pattern of ["3:a", "group", "2:", "2:a*b", "1:a@b", "**", "2:#*"])
    t.match(problemsOf({ "hooks.send.channels": pattern }), [/is not valid\. Write/], pattern);
  t.same(problemsOf({ "hooks.send.channels": "*,2:*,1:bob,2:support-*" }), []);
});
