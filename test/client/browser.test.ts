// Runs the scenarios in headless Chromium, with the SDK bundled for browsers, one after the other
// against one broker process.

import { fileURLToPath } from "node:url";
import { spawnBroker } from "../support/broker.ts";
import { t } from "../support/suite.ts";
import { bundle, launchBrowser, openPage, servePages } from "./browser.ts";
import { startWorld } from "./restartable.ts";
import type { Fact, ScenarioName, World } from "./scenario.ts";
import { registerTalkers, TALK } from "./talk.ts";

const MODULE = fileURLToPath(new URL("scenario.ts", import.meta.url));
const NAMES: readonly ScenarioName[] = [
  "talk",
  "follow",
  "account",
  "typing",
  "kick",
  "restart",
  "restartStream",
  "records",
];

/** Globals of the page: the bundled module, and the world's functions that the test exposes. */
interface PageGlobals {
  readonly bundled: typeof import("./scenario.ts");
  readonly world: Omit<World, "url">;
}

const world = await startWorld(t);

t.test("every scenario of the SDK that is run in Node is also run in Chromium", async (t) => {
  const { SCENARIOS } = await import("./scenario.ts");
  t.same(NAMES, Object.keys(SCENARIOS));
});

const browser = launchBrowser(t);
browser.catch(() => undefined); // each test that needs the browser fails with this error

for (const name of NAMES)
  t.test(`the SDK passes the scenario ${name} in Chromium`, { timeout: 300_000 }, async (t) => {
    const page = await openPage(t, await browser, MODULE);
    await page.exposeFunction("post", world.post);
    await page.exposeFunction("sign", world.sign);
    await page.exposeFunction("kill", world.kill);
    await page.exposeFunction("start", world.start);
    const facts: readonly Fact[] = await page.evaluate(
      ([name, url]) => {
        const { bundled, ...functions } = globalThis as unknown as PageGlobals & Omit<World, "url">;
        const { post, sign, kill, start } = functions;
        return bundled.SCENARIOS[name]({ url, post, sign, kill, start });
      },
      [name, world.url] as const,
    );
    for (const [description, actual, expected] of facts) t.same(actual, expected, description);
  });

const ENTRY = fileURLToPath(new URL("../../src/client/index.ts", import.meta.url));
const TAB = fileURLToPath(new URL("../../src/client/tab.ts", import.meta.url));

t.test(
  "an address that the page's Content-Security-Policy blocks is reported at once, with the reason",
  async (t) => {
    const page = await openPage(t, await browser, ENTRY);
    const policy = `<meta http-equiv="Content-Security-Policy" content="connect-src 'none'">`;
    await page.evaluate(`document.head.append(...new DOMParser()
    .parseFromString(${JSON.stringify(policy)}, "text/html").head.children)`);
    const message = await page.evaluate((url) => {
      const { bundled } = globalThis as unknown as {
        bundled: typeof import("../../src/client/index.ts");
      };
      const client = bundled.connect({ url, uid: "amy", timeouts: { connectMs: 600_000 } });
      return new Promise<string>((resolve) =>
        client.on("error", ({ message }) => resolve(message)),
      );
    }, world.url);
    t.match(message, /Content-Security-Policy \(connect-src\)/);
  },
);

/** Script of a worker that talks to the broker at the address that it receives with a port. */
const WORKER = `
const { connect, group } = bundled;
const talk = async (address) => {
  let output = "";
  const process = { argv: [, , address] };
  const console = { log: (text) => { output += text; } };
  ${TALK}
  return output;
};
const answer = ({ data, ports: [port] }) =>
  talk(data).then((output) => port.postMessage(output), (error) => port.postMessage(String(error)));
globalThis.onmessage = answer;
globalThis.onconnect = ({ ports: [port] }) => { port.onmessage = answer; };
`;

/** Expressions with which a page starts a worker. Their value has the worker's `postMessage`. */
const WORKERS = {
  "a dedicated worker": 'new Worker("/worker.js")',
  "a shared worker": 'new SharedWorker("/worker.js").port',
  "a service worker": `(await navigator.serviceWorker.register("/worker.js"),
    (await navigator.serviceWorker.ready).active)`,
};

for (const [name, start] of Object.entries(WORKERS))
  t.test(`the SDK exchanges messages in ${name} of Chromium`, async (t) => {
    const broker = await spawnBroker(t);
    await registerTalkers(broker);
    const script = `${await bundle(ENTRY)}\n${WORKER}`;
    const origin = await servePages(t, ({ url }, response) => {
      const isScript = url === "/worker.js";
      response.setHeader("content-type", isScript ? "text/javascript" : "text/html");
      response.end(isScript ? script : "<!doctype html>");
    });
    const page = await (await browser).newPage();
    t.teardown(() => page.close());
    await page.goto(origin);
    const output = await page.evaluate(
      `(async () => {
        const worker = ${start};
        const { port1, port2 } = new MessageChannel();
        worker.postMessage("ws://127.0.0.1:${broker.clientPort}", [port2]);
        return new Promise((resolve) => { port1.onmessage = ({ data }) => resolve(data); });
      })()`,
    );
    t.equal(output, "works");
  });

t.test("a tab's device id survives a reload and is not copied to another tab", async (t) => {
  const page = await openPage(t, await browser, TAB);
  const idOf = (tab: typeof page): Promise<string> =>
    tab.evaluate(() => {
      const { bundled } = globalThis as unknown as {
        bundled: typeof import("../../src/client/tab.ts");
      };
      return bundled.tabDeviceId();
    });
  const id = await idOf(page);
  t.match(id, /^[0-9a-f]{24}$/);
  await page.reload();
  t.equal(await idOf(page), id, "a reload keeps the id");
  // Like a duplicated tab, a page that another page opens gets a copy of the opener's
  // sessionStorage.
  const [copy] = await Promise.all([
    page.waitForEvent("popup"),
    page.evaluate("void window.open(location.href)"),
  ]);
  await copy.waitForLoadState();
  t.equal(await copy.evaluate('sessionStorage.getItem("jindou-device")'), id);
  const copyId = await idOf(copy);
  t.match(copyId, /^[0-9a-f]{24}$/);
  t.not(copyId, id, "a duplicated tab gets a different id");
  await copy.reload();
  t.equal(await idOf(copy), copyId);
});
