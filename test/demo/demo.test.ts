// The demo, played through in Chromium against the built program.

import { readdirSync, readFileSync } from "node:fs";
import { setTimeout as pause } from "node:timers/promises";
import type { Locator, Page } from "playwright-core";
import t, { type Test } from "tap";
import { launchBrowser, servePages } from "../client/browser.ts";
import { type ChildBroker, type Settings, spawnBroker } from "../support/broker.ts";
import { checkAccessible, checkPictures, openPage, type View } from "../support/pages.ts";
import { freePort } from "../support/redis.ts";

const DESKTOP: View = { width: 1280 };
const PHONE: View = { width: 360, height: 740, scheme: "dark" };

const browser = launchBrowser(t);
browser.catch(() => undefined); // each test that needs the browser fails with this error

function startNode(t: Test, settings: Settings = {}): Promise<ChildBroker> {
  return spawnBroker(t, { JINDOU_PRESENCE_OFFLINE_DELAY_MS: "0", ...settings });
}

/** Waits until the condition holds, without a timeout of its own, because the test has one. */
async function until(holds: () => Promise<boolean>): Promise<void> {
  while (!(await holds())) await pause(20);
}

const demoOf = ({ apiPort }: ChildBroker) => `http://127.0.0.1:${apiPort}/demo/`;

/** Returns what each pane shows, and the group's newest messages in the broker. */
const STATE = `(async () => {
  const panes = [...document.querySelectorAll(".pane")].map((pane) => ({
    input: pane.querySelector("input").value,
    texts: [...pane.querySelectorAll(".status, .draft, .kicked, [role=alert]")].map((item) => item.innerText),
    messages: [...pane.querySelectorAll(".messages li")].slice(-3).map((item) => item.innerText),
  }));
  const [prefix] = /demo-[a-z]{8}/.exec(document.querySelector("footer").innerText);
  const url = "/channel/messages?channel_type=2&order=desc&limit=3&channel_id=" + prefix + "-team";
  const stored = await fetch(url).then((reply) => reply.text(), String);
  return JSON.stringify({ panes, stored });
})()`;

/** The pane of one user. */
class Side {
  readonly pane: Locator;

  constructor(page: Page, name: string) {
    this.pane = page.getByRole("region", { name });
  }

  button(name: string | RegExp): Locator {
    return this.pane.getByRole("button", { name });
  }

  async open(conversation: string): Promise<void> {
    await this.pane.getByRole("navigation").getByRole("button", { name: conversation }).click();
  }

  async send(text: string): Promise<void> {
    await this.pane.getByLabel("Message", { exact: true }).fill(text);
    await this.button("Send").click();
  }

  /** Waits until the pane shows this text. The error of a timeout contains the page's state. */
  async shows(text: string | RegExp): Promise<void> {
    const shown = this.pane.getByText(text).first().waitFor();
    await shown.catch(async (cause) => {
      const state = await this.pane.page().evaluate(STATE).catch(String);
      throw new Error(`${text} is not shown: ${state}`, { cause });
    });
  }

  async toggleNetwork(): Promise<void> {
    await this.pane.getByRole("switch", { name: "Network" }).click();
  }
}

function sidesOf(page: Page): readonly [ann: Side, ben: Side] {
  return [new Side(page, "Ann"), new Side(page, "Ben")];
}

async function openDemo(t: Test, broker: ChildBroker, view: View = DESKTOP) {
  const page = await openPage(t, await browser, demoOf(broker), view);
  const [ann, ben] = sidesOf(page);
  for (const side of [ann, ben]) await side.shows("online · device 1");
  const [prefix = ""] =
    /demo-[a-z]{8}\b/.exec((await page.locator("footer").textContent()) ?? "") ?? [];
  t.not(prefix, "", "ids begin with demo- and 8 letters");
  return { page, ann, ben, prefix };
}

/** Uses every feature of the demo. */
async function play(t: Test, broker: ChildBroker, view: View): Promise<void> {
  const { page, ann, ben, prefix } = await openDemo(t, broker, view);
  const name = `${view.width} px`;
  t.match(broker.output(), `"demo":"${demoOf(broker)}"`, "the log names the address");
  await checkAccessible(t, page, `${name}, at the start`);
  const boxes = await Promise.all([ann, ben].map(({ pane }) => pane.boundingBox()));
  const [left, right] = boxes.map((box) => ({ x: box?.x ?? 0, y: box?.y ?? 0 }));
  const isBeside = view.width > 860;
  t.equal(left?.y === right?.y, isBeside, "the panes are side by side on a wide page");
  t.equal(left?.x === right?.x, !isBeside, "the panes are one below the other on a narrow page");
  const overflow = await page.evaluate("document.documentElement.scrollWidth - innerWidth");
  t.ok(Number(overflow) <= 0, "the page does not scroll sideways");

  // history on scroll
  const items = ann.pane.locator(".messages li");
  await until(async () => (await items.count()) === 20);
  await ann.pane.getByRole("log").evaluate((log) => log.scrollTo(0, -1e6));
  await ann.shows("Morning! Did the new beans arrive?");

  // group, personal chat, unread counts, presence
  await ann.send("The sign looks great");
  await ben.shows("The sign looks great");
  await ben.pane.getByRole("navigation").getByText("online").waitFor();
  await ann.open("Ben");
  await ann.shows("No messages yet");
  await ann.send("Just between us");
  await ben.pane.locator(".unread").getByText("1").waitFor();
  await ben.open("Ann");
  await ben.shows("Just between us");
  await ben.pane.locator(".unread").waitFor({ state: "detached" });
  await ann.open("Café team");
  await ben.open("Café team");

  // a stream, and its stop button
  await ann.button("Ask the AI").click();
  for (const side of [ann, ben]) await side.shows(/Jindou is Chinese for/);
  await ben.button("Stop").click();
  for (const side of [ann, ben]) await side.shows("AI · stopped");
  const texts = await Promise.all([ann, ben].map(({ pane }) => pane.locator(".ai").textContent()));
  t.equal(texts[0], texts[1], "both users see the same text of the stopped stream");
  t.notMatch(texts[0] ?? "", /stays in the history/, "the stream was stopped before its end");
  await ann.pane.getByRole("button", { name: "Ask the AI", disabled: false }).waitFor();
  await ann.pane.getByLabel("Message", { exact: true }).fill("Once more, please");
  await ann.button("Ask the AI").click();
  await ben.shows("Once more, please");
  await until(async () => (await ben.pane.locator(".ai").count()) === 2);
  await ben.pane.locator(".ai").nth(1).getByText("one at a time").waitFor();
  if (view === DESKTOP) await checkPictures(t, page, "demo");
  await checkAccessible(t, page, `${name}, after a stream`);

  // a lost network, and the resume
  await ben.toggleNetwork();
  await ben.shows("no network");
  await ann.pane.getByRole("navigation").getByText("offline").waitFor();
  for (const text of ["Ben?", "Are you there?", "Call me back"]) await ann.send(text);
  await ben.send("Can you hear me?");
  await ben.shows("not sent yet");
  await ann.shows("Call me back");
  t.equal(await ben.pane.getByText("Call me back").count(), 0, "nothing arrives while offline");
  await ben.toggleNetwork();
  await ben.shows("3 messages while you were away");
  for (const text of ["Ben?", "Are you there?", "Call me back"])
    t.equal(await ben.pane.getByText(text, { exact: false }).count(), 1, `${text} arrives once`);
  await ann.shows("Can you hear me?");
  await ben.pane.getByText("not sent yet").waitFor({ state: "detached" });

  // a second device
  await ann.button("Second device").click();
  await ann.shows("This device was signed out");
  await ann.shows(/code 4200/);
  await checkAccessible(t, page, `${name}, after a kick`);
  await ann.button("Continue with device 2").click();
  await ann.shows("online · device 2");
  await ann.shows("Can you hear me?");
  await ann.send("From the other device");
  await ben.shows("From the other device");

  // the removal of the group and the tokens when the page is left
  const group = `channel_id=${prefix}-team&channel_type=2`;
  const members = async () => (await broker.call(`/channel/state?${group}`)).body.disband;
  const tokens = async (user: string) =>
    (await broker.call(`/user/devices?uid=${prefix}-${user}`)).body.devices.filter(
      ({ has_token }: { readonly has_token: number }) => has_token === 1,
    ).length;
  t.equal(await members(), 0);
  t.equal(await tokens("ann"), 1);
  await page.reload(); // a page that is left for another site has only 500 ms for its calls
  await until(async () => (await members()) === 1);
  for (const user of ["ann", "ben"]) await until(async () => (await tokens(user)) === 0);
  t.pass("the group and the tokens are removed");
  const { messages } = (await broker.call(`/channel/messages?${group}&limit=100`)).body;
  const answers = messages.filter((message: { readonly stream?: unknown }) => message.stream);
  t.ok(answers.length > 0);
  t.ok(messages.length - answers.length > 25);
  const lifetimes = new Set(messages.map(({ expire }: { readonly expire: number }) => expire));
  t.same([...lifetimes], [3600], "messages of users and of the model expire after an hour");
}

for (const view of [DESKTOP, PHONE])
  t.test(`at a width of ${view.width} px, every feature of the demo works`, async (t) => {
    await play(t, await startNode(t), view);
  });

t.test("every feature of the demo works with api.dialect = wukongim", async (t) => {
  await play(t, await startNode(t, { JINDOU_API_DIALECT: "wukongim" }), { width: 1024 });
});

const HOSTILE = [
  "<img src=x onerror=alert(1)>",
  "<script>alert(1)</script>",
  "javascript:alert(document.domain)",
  "https://evil.example/?<a href='javascript:alert(1)'>click</a>",
  "'; alert(1); '",
  '"$(touch /tmp/x)" `id`',
];

t.test("the demo shows text that looks like markup, links or code as plain text", async (t) => {
  const broker = await startNode(t);
  const { page, ann, ben, prefix } = await openDemo(t, broker);
  for (const text of HOSTILE) await ann.send(text);
  for (const [n, content] of HOSTILE.entries())
    await broker.call("/message/send", {
      ...{ channel_id: `${prefix}-team`, channel_type: 2, from_uid: `${prefix}-bot` },
      payload: Buffer.from(JSON.stringify({ type: n, content, toString: content })).toString(
        "base64",
      ),
    });
  const stream = { channel_id: `${prefix}-team`, channel_type: 2, from_uid: `${prefix}-bot` };
  for (const [type, data] of [
    ["Start", "<b>"],
    ["Content", HOSTILE.join(" ")],
    ["End", "<b>"],
  ])
    await broker.call("/event", {
      ...{ ...stream, client_msg_no: "<img src=x onerror=alert(1)>" },
      event: { type: `___TextMessage${type}`, data },
    });
  for (const side of [ann, ben]) {
    await side.pane.locator(".ai").getByText(HOSTILE.join(" ")).waitFor();
    for (const text of HOSTILE)
      t.equal(await side.pane.locator(".bubble:not(.ai)").getByText(text).count(), 2, text);
  }
  t.equal(await page.locator(".messages :is(img, a, script, iframe, b)").count(), 0);
});

t.test("two visitors of the demo do not end each other's sessions", async (t) => {
  const broker = await startNode(t);
  const first = await openDemo(t, broker, { width: 1280, height: 2400 });
  // A tall pane reads older history without scrolling.
  await first.ann.shows("Morning! Did the new beans arrive?");
  const second = await openDemo(t, broker);
  t.not(first.prefix, second.prefix);
  await second.ann.send("Hello from the second page");
  await second.ben.shows("Hello from the second page");
  await first.ann.shows("online · device 1");
  t.equal(await first.ann.pane.getByText("Hello from the second page").count(), 0);
  await second.page.close();
  await first.ann.send("Still here");
  await first.ben.shows("Still here");
});

t.test("the demo names the setting that keeps its clients from connecting", async (t) => {
  const alertOf = async (settings: Settings) => {
    const broker = await startNode(t, settings);
    const page = await (await browser).newPage();
    t.teardown(() => page.close());
    await page.goto(demoOf(broker));
    const alert = new Side(page, "Ann").pane.getByRole("alert");
    await alert.waitFor({ timeout: 120_000 });
    return { text: await alert.textContent(), origin: new URL(demoOf(broker)).origin };
  };
  const refused = await alertOf({ JINDOU_CLIENT_ALLOWED_ORIGINS: "https://chat.example" });
  t.match(refused.text, "client.allowedOrigins");
  t.match(refused.text, refused.origin);
  const address = `ws://127.0.0.1:${await freePort()}`;
  const unreachable = await alertOf({ JINDOU_CLUSTER_CLIENT_ADDRESS: address });
  t.match(unreachable.text, address);
  t.match(unreachable.text, "client.listen");
  t.match(unreachable.text, "cluster.clientAddress");
});

const VICTIM = { uid: "victim", token: "t", device_flag: 1 };

t.test(
  "in protected mode, calls from a page on another port, a rebound DNS name or a form are rejected, and the demo and the console cannot be framed",
  async (t) => {
    const broker = await startNode(t);
    const api = `http://127.0.0.1:${broker.apiPort}`;
    const attacker = await servePages(t, (_request, response) => {
      response.setHeader("content-type", "text/html");
      response.end("<!doctype html><iframe name=f></iframe><form method=post target=f></form>");
    });
    const rebinding = await launchBrowser(t, ["--host-resolver-rules=MAP rebound.test 127.0.0.1"]);
    const attack = `async (api) => {
      const body = ${JSON.stringify(JSON.stringify(VICTIM))};
      const calls = [
        { method: "POST", body, headers: { "content-type": "application/json" } },
        { method: "POST", body, mode: "no-cors" },
        { method: "POST", body, mode: "no-cors", headers: { "content-type": "text/plain" } },
      ].map((options) => fetch(api + "/user/token", options));
      calls.push(fetch(api + "/varz"));
      const results = await Promise.all(
        calls.map((call) => call.then((response) => response.text(), () => "")),
      );
      return results.filter((text) => text.includes('"ok"') || text.includes("server_id"));
    }`;
    const page = await rebinding.newPage();
    page.setDefaultTimeout(120_000);
    await page.goto(attacker);
    t.same(await page.evaluate(`(${attack})(${JSON.stringify(api)})`), [], "another port");
    await page.evaluate(`{
      const form = document.querySelector("form");
      form.action = ${JSON.stringify(`${api}/user/token`)};
      form.enctype = "text/plain";
      const input = form.appendChild(document.createElement("input"));
      input.name = '{"uid":"victim","token":"t","device_flag":1,"x":"';
      input.value = '"}';
      form.submit();
    }`);
    await page.frameLocator("[name=f]").locator("body").getByText("403").waitFor();
    for (const path of ["/demo/", "/console/"]) {
      const refused = page.waitForEvent("console", (line) => /frame-ancestors/.test(line.text()));
      await page.evaluate(`document.querySelector("iframe").src = ${JSON.stringify(api + path)}`);
      await refused;
      t.pass(`${path} refuses to be framed`);
    }
    await page.goto(`http://rebound.test:${broker.apiPort}/demo/`);
    await page
      .getByRole("alert")
      .getByText(/cannot start.*403/)
      .waitFor();
    t.same(await page.evaluate(`(${attack})("")`), [], "a rebound name");
    const { devices } = (await broker.call("/user/devices?uid=victim")).body;
    t.same(devices, [], "no token was registered");
  },
);

const SOURCES = new URL("../../src/demo/", import.meta.url);

t.test(
  "the demo has at most 600 lines, and its backend has at most 80 lines and imports no library",
  async (t) => {
    const lines = (name: string) =>
      readFileSync(new URL(name, SOURCES), "utf8").split("\n").length - 1;
    const total = readdirSync(SOURCES).reduce((sum, name) => sum + lines(name), 0);
    t.ok(total <= 600, `the demo has ${total} lines`);
    t.ok(lines("backend.ts") <= 80);
    const imports = readFileSync(new URL("backend.ts", SOURCES), "utf8").match(/from ".*"/g);
    t.same(imports, ['from "./world.ts"']);
  },
);
