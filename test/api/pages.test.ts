// Tests of the web pages of a running node: the headers of their files, who may read them, and the
// redirects from `GET /` to a page. Uses the built pages in dist/.

import { request } from "node:http";
import { gunzipSync } from "node:zlib";
import type { Test } from "tap";
import { type Broker, startBroker } from "../support/broker.ts";
import { t } from "../support/suite.ts";

const POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

interface Answer {
  readonly status: number;
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  readonly bytes: Buffer;
}

/** Sends a request with exactly these headers, which `fetch` would not allow. */
function send(
  { apiPort: port }: Broker,
  path: string,
  headers: Readonly<Record<string, string>> = {},
  method = "GET",
): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const call = request({ host: "127.0.0.1", port, path, method, headers }, (response) => {
      const chunks: Buffer[] = [];
      response.on("data", (chunk: Buffer) => chunks.push(chunk));
      response.on("end", () => {
        const { statusCode: status = 0, headers } = response;
        resolve({ status, headers, bytes: Buffer.concat(chunks) });
      });
    });
    call.on("error", reject);
    call.end();
  });
}

/** Returns the paths of the script and the style sheet that a page names. */
async function filesOf(broker: Broker, page: string): Promise<readonly string[]> {
  const { bytes } = await send(broker, page);
  const names = [...`${bytes}`.matchAll(/(?:src|href)="([\w-]+\.(?:js|css))"/g)];
  return names.map(([, name]) => `${page}${name}`);
}

const checkHeaders = (t: Test, { headers }: Answer, path: string, policy = POLICY) => {
  t.equal(headers["content-security-policy"], policy, `${path}: policy`);
  t.equal(headers["x-content-type-options"], "nosniff", `${path}: nosniff`);
  t.equal(headers["referrer-policy"], "no-referrer", `${path}: referrer`);
  t.equal(headers["cross-origin-opener-policy"], "same-origin", `${path}: opener`);
};

t.test("every file of the demo and the console has the security headers", async (t) => {
  const broker = await startBroker(t);
  const clients = `connect-src 'self' ws://127.0.0.1:${broker.clientPort}`;
  const policies = {
    "/demo/": POLICY.replace("connect-src 'self'", clients),
    "/console/": POLICY,
  };
  for (const [page, policy] of Object.entries(policies)) {
    const index = await send(broker, page);
    t.equal(index.status, 200, page);
    t.equal(index.headers["content-type"], "text/html; charset=utf-8");
    t.equal(index.headers["cache-control"], "no-cache");
    checkHeaders(t, index, page, policy);
    const paths = await filesOf(broker, page);
    t.equal(paths.length, 2, `${page} names a script and a style sheet`);
    for (const path of paths) {
      const file = await send(broker, path);
      t.equal(file.status, 200, path);
      checkHeaders(t, file, path);
      t.equal(file.headers["cache-control"], "public, max-age=31536000, immutable", path);
      const type = path.endsWith(".js") ? "text/javascript" : "text/css";
      t.equal(file.headers["content-type"], `${type}; charset=utf-8`, path);
    }
  }
});

t.test("the files of a page are compressed for clients that accept gzip", async (t) => {
  const broker = await startBroker(t);
  const [path = ""] = await filesOf(broker, "/demo/");
  const plain = await send(broker, path);
  t.equal(plain.headers["content-encoding"], undefined);
  const zipped = await send(broker, path, { "accept-encoding": "br, gzip;q=0.8" });
  t.equal(zipped.headers["content-encoding"], "gzip");
  t.equal(zipped.headers.vary, "accept-encoding");
  t.ok(gunzipSync(zipped.bytes).equals(plain.bytes));
  for (const coding of ["identity", "gzip;q=0", "br, gzip; q=0.0", "xgzip"]) {
    const { headers } = await send(broker, path, { "accept-encoding": coding });
    t.equal(headers["content-encoding"], undefined, coding);
  }
  const head = await send(broker, path, { "accept-encoding": "gzip" }, "HEAD");
  t.equal(head.status, 200);
  t.equal(head.bytes.length, 0);
  t.equal(head.headers["cache-control"], plain.headers["cache-control"]);
});

t.test("a path below a page is answered with 404 if the page has no such file", async (t) => {
  const broker = await startBroker(t);
  for (const path of [
    "/demo/main-AAAAAAAA.js",
    "/demo/index.html",
    "/demo/..%2F..%2Fpackage.json",
    "/demo/%2e%2e%2fconsole%2findex.html",
    "/demo/main.tsx",
    "/console/x/y",
  ])
    t.equal((await send(broker, path)).status, 404, path);
  for (const page of ["/demo", "/console"]) {
    const { status, headers } = await send(broker, page);
    t.equal(status, 308, page);
    t.equal(headers.location, `${page}/`);
  }
  const { status, headers } = await send(broker, "/demo/", {}, "POST");
  t.equal(status, 405);
  t.equal(headers.allow, "GET, HEAD");
});

t.test("if calls need a credential, the console is served and the demo is not", async (t) => {
  const broker = await startBroker(t, { JINDOU_AUTH_API: "required" });
  t.equal((await send(broker, "/console/")).status, 200);
  for (const path of await filesOf(broker, "/console/"))
    t.equal((await send(broker, path)).status, 200, path);
  for (const path of ["/demo", "/demo/", "/demo/main-AAAAAAAA.js"]) {
    const { status, bytes } = await send(broker, path);
    t.equal(status, 404, path);
    t.match(JSON.parse(`${bytes}`), { code: "not_found", error: /api\.listen/ });
  }
});

t.test(
  "GET / redirects a browser to the demo, or to the console if calls need a credential",
  async (t) => {
    const accept = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
    for (const [settings, page] of [
      [{}, "/demo/"],
      [{ JINDOU_API_TOKEN: "0123456789abcdef" }, "/console/"],
    ] as const) {
      const broker = await startBroker(t, settings);
      const { status, headers } = await send(broker, "/", { accept });
      t.equal(status, 303, page);
      t.equal(headers.location, page);
      t.equal(headers.vary, "accept");
      for (const other of ["*/*", "application/json"]) {
        const { status, headers } = await send(broker, "/", { accept: other });
        t.equal(status, 200, other);
        t.match(headers["content-type"], /json/, other);
      }
    }
  },
);

t.test(
  "the page of the demo contains the URL of the client listener, and the page's origin if that listener refuses the origin",
  async (t) => {
    const factsOf = async (settings: Readonly<Record<string, string>>) => {
      const broker = await startBroker(t, settings);
      const host = "localhost:5001";
      const { headers, bytes } = await send(broker, "/demo/", { host });
      const [, url, origin] = /data-client-url="([^"]*)" data-refused-origin="([^"]*)"/.exec(
        `${bytes}`,
      ) ?? ["", "", ""];
      return { url, origin, policy: headers["content-security-policy"] };
    };
    const own = { JINDOU_CLIENT_ALLOWED_ORIGINS: "http://localhost:5001" };
    t.match(await factsOf(own), { url: /^ws:\/\/127\.0\.0\.1:\d+$/, origin: "" });
    const foreign = { JINDOU_CLIENT_ALLOWED_ORIGINS: "https://chat.example" };
    t.match(await factsOf(foreign), { origin: "http://localhost:5001" });
    const page = await send(await startBroker(t, { JINDOU_API_CONSOLE: "off" }), "/demo/");
    t.match(
      `${page.bytes}`,
      'data-console-path=""',
      "the demo has no link to a console that is off",
    );
    t.match(await factsOf({ JINDOU_CLUSTER_CLIENT_ADDRESS: "chat.example:5200" }), {
      url: "ws://chat.example:5200",
      policy: /connect-src 'self' ws:\/\/chat\.example:5200;/,
    });
    t.match(await factsOf({ JINDOU_CLIENT_LISTEN: "[::1]:0" }), { url: /^ws:\/\/localhost:\d+$/ });
  },
);

t.test("with api.console off, no console is served and browsers get JSON from GET /", async (t) => {
  const settings = { JINDOU_API_CONSOLE: "off", JINDOU_AUTH_API: "required" };
  const broker = await startBroker(t, settings);
  for (const path of ["/console", "/console/"]) {
    const { status, bytes } = await send(broker, path);
    t.equal(status, 404, path);
    t.match(`${bytes}`, "api.console");
  }
  const { status, headers } = await send(broker, "/", { accept: "text/html" });
  t.equal(status, 200);
  t.match(headers["content-type"], "application/json");
});
