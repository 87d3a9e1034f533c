// The console in Chromium, against real nodes: what each role sees and may do, text from users,
// small windows, a node with the dialect of WuKongIM, and several nodes behind a proxy.

import { once } from "node:events";
import { readdirSync, readFileSync } from "node:fs";
import { createServer, request } from "node:http";
import type { AddressInfo } from "node:net";
import { gzipSync } from "node:zlib";
import type { Page } from "playwright-core";
import type { Test } from "tap";
import { startWorld, type World, worldOf } from "../behaviour/world.ts";
import { launchBrowser } from "../client/browser.ts";
import { type Settings, startBroker, tempFolder } from "../support/broker.ts";
import { connectNative } from "../support/native-client.ts";
import { checkAccessible, checkPictures } from "../support/pages.ts";
import { startRedis } from "../support/redis.ts";
import { t } from "../support/suite.ts";
import { assertFits, logIn, openConsole, visit } from "./browser.ts";

const HOSTILE = `<img src=x onerror="document.title='pwned'">`;
const MAX_GZIPPED_BYTES = 120 * 1024;

const MANAGERS: Settings = {
  JINDOU_AUTH_API: "required",
  JINDOU_MANAGERS: JSON.stringify(
    ["admin", "operator", "viewer"].map((role) => ({ username: role, password: "right", role })),
  ),
};

const browser = launchBrowser(t);
const addressOf = ({ apiPort }: Pick<World, "apiPort">) => `http://127.0.0.1:${apiPort}`;
const main = (page: Page) => page.locator("#main");

t.test("the compressed files of the console take up at most 120 KiB", async (t) => {
  const folder = new URL("../../dist/pages/console/", import.meta.url);
  const sizes = readdirSync(folder).map(
    (name) => gzipSync(readFileSync(new URL(name, folder))).length,
  );
  const total = sizes.reduce((sum, size) => sum + size, 0);
  t.ok(total <= MAX_GZIPPED_BYTES, `${total} bytes`);
});

t.test(
  "in protected mode, an operator needs no login to the console and can find out why a client was closed, which group is the busiest and whether a message was stored",
  async (t) => {
    const world = await startWorld(t);
    await world.join(t, "ann", { flag: 1, deviceId: "browser-7" });
    const lobby = await world.newGroup(["ann", "ben"]);
    for (const text of ["one", "two"])
      await world.send("ann", lobby, text, { client_msg_no: text });
    const page = await openConsole(t, await browser, { url: addressOf(world) });
    await page.getByText(/^Node \w+ (is healthy|works)/).waitFor();
    t.equal(await page.getByRole("button", { name: "Log out" }).count(), 0);

    await visit(page, "#/sessions", "Sessions");
    const row = page.getByRole("row").filter({ hasText: "browser-7" });
    await row.getByRole("button", { name: "Kick" }).click();
    await row.getByRole("button", { name: "End this session" }).click();
    await main(page).getByText("No session matches.").waitFor();
    await page.getByRole("tab", { name: "Closed and refused" }).click();
    const closed = page.getByRole("row").filter({ hasText: "browser-7" });
    await closed.getByText("kicked", { exact: true }).waitFor();
    t.match(await closed.textContent(), /a backend ended the session.*4200.*127\.0\.0\.1/);

    await visit(page, "#/user?uid=ann", "ann");
    await page.getByText("The last session ended").waitFor();
    await visit(page, "#/channel", "Channel");
    const busiest = page.getByRole("row").nth(1);
    await busiest.waitFor();
    t.match(await busiest.textContent(), `${lobby.id}group2`);
    await busiest.getByRole("link").click();
    await main(page).getByText("two", { exact: true }).waitFor();

    await visit(page, "#/message", "Message");
    await page.getByLabel("Channel id").fill(lobby.id);
    await page.getByLabel("or client_msg_no").fill("one");
    await page.getByRole("button", { name: "Search" }).click();
    await page.getByText("Stored as number 1 of its channel").waitFor();
    await main(page).getByText("not read").first().waitFor();
    await page.getByLabel("or client_msg_no").fill("three");
    await page.getByRole("button", { name: "Search" }).click();
    await page.getByText("Not stored").waitFor();

    await page.getByRole("link", { name: "Settings" }).click();
    await main(page).getByText("client.keepClosed").waitFor();
    await visit(page, "#/api", "API");
    await page.getByRole("button", { name: "GET /varz" }).click();
    await page.getByRole("button", { name: "Call", exact: true }).click();
    await page.getByText('"server_name": "Jindou"').waitFor();
  },
);

t.test(
  "the live view of a channel shows and cancels a stream, and a hidden page sends no requests",
  async (t) => {
    const world = await startWorld(t);
    const channel = await world.newGroup(["ann"]);
    const stream = { client_msg_no: "s", channel_id: channel.id, channel_type: 2, from_uid: "ann" };
    const post = (type: string, data = "") =>
      world.ok("/event", { ...stream, event: { type, data } });
    await post("___TextMessageStart");
    const page = await openConsole(t, await browser, { url: addressOf(world) });
    await visit(page, `#/channel?type=2&id=${channel.id}`, channel.id);
    await page.getByText("stream active").waitFor();
    await post("___TextMessageContent", "It is a ");
    await post("___TextMessageContent", "long answer");
    await page.getByText("It is a long answer").waitFor();
    await page.getByRole("button", { name: "Cancel" }).click();
    await page.getByRole("button", { name: "Cancel the stream" }).click();
    await page.getByText("stream cancelled").waitFor();
    await page.evaluate('Object.defineProperty(document, "hidden", { value: true })');
    await page.waitForLoadState("networkidle");
    let calls = 0;
    page.on("request", () => {
      calls += 1;
    });
    await new Promise((resolve) => setTimeout(resolve, 2500)); // longer than two polls of the view
    t.equal(calls, 0);
  },
);

t.test(
  "a reply that takes longer than the refresh interval of the console's live view is shown, and a late reload does not replace a page that was opened in the meantime",
  async (t) => {
    const world = await startWorld(t);
    const channel = await world.newGroup(["ann"]);
    for (let number = 1; number <= 60; number++)
      await world.send("ann", channel, `text ${number}.`, {});
    const page = await openConsole(t, await browser, { url: addressOf(world) });
    await page.route("**/channel/messages?*", async (route) => {
      await new Promise((resolve) => setTimeout(resolve, 2500)); // longer than two polls
      await route.continue();
    });
    await visit(page, `#/channel?type=2&id=${channel.id}`, channel.id);
    await page.getByText("text 60.").waitFor();
    await page.unrouteAll({ behavior: "ignoreErrors" });

    const stream = { client_msg_no: "s", channel_id: channel.id, channel_type: 2, from_uid: "ann" };
    await world.ok("/event", { ...stream, event: { type: "___TextMessageStart", data: "" } });
    let finish = () => {};
    const isOlderShown = new Promise<void>((resolve) => {
      finish = resolve;
    });
    await page.route("**/*", async (route) => {
      if (route.request().method() === "POST") await isOlderShown;
      await route.continue();
    });
    await page.getByRole("button", { name: "Cancel" }).click();
    const cancelled = page.waitForResponse((reply) => reply.request().method() === "POST");
    await page.getByRole("button", { name: "Cancel the stream" }).click();
    await page.getByRole("button", { name: "Older" }).click();
    await page.getByText("text 1.").waitFor();
    const reloaded = page.waitForResponse((reply) => reply.url().includes("/channel/messages?"));
    finish();
    await Promise.all([cancelled, reloaded]);
    await page.waitForLoadState("networkidle");
    t.ok(await page.getByText("text 1.").isVisible(), "the older page stays");
    await page.unrouteAll({ behavior: "ignoreErrors" });
  },
);

t.test(
  "the console shows text from users as plain text, which cannot add images, scripts or shell commands",
  async (t) => {
    const world = await startWorld(t);
    await world.join(t, HOSTILE, { deviceId: "javascript:alert(1)" });
    const quotes = `it's "$(touch /tmp/x)" \`id\``;
    const group = await world.newGroup([HOSTILE]);
    await world.send(HOSTILE, group, HOSTILE);
    await world.send(HOSTILE, group, "javascript:alert(1)");
    const page = await openConsole(t, await browser, { url: addressOf(world) });
    await visit(page, "#/sessions", "Sessions");
    await main(page).getByText(HOSTILE).waitFor();
    await visit(page, `#/user?uid=${encodeURIComponent(HOSTILE)}`, HOSTILE);
    await main(page).getByText("Online with 1 session").waitFor();
    await visit(page, `#/channel?type=2&id=${group.id}`, group.id);
    await main(page).locator(".message-text").getByText(HOSTILE).waitFor();
    await page.getByRole("button", { name: "Details" }).first().click();
    t.equal(await main(page).locator("img, iframe, object").count(), 0);
    t.equal(await page.locator('a[href^="javascript"]').count(), 0);
    t.notMatch(await page.title(), "pwned");
    await visit(page, "#/api", "API");
    await page.getByRole("button", { name: "GET /user/devices" }).click();
    await page.getByLabel(/^uid/).fill(quotes);
    const line = (await page.locator(".curl code").textContent()) ?? "";
    t.match(line, /^curl -s 'http:\/\/127\.0\.0\.1:\d+\/user\/devices\?uid=[^'"$`]*'$/);
    await page.getByRole("button", { name: "POST /user/token" }).click();
    await page.getByLabel("Body").fill(quotes);
    const body = (await page.locator(".curl code").textContent()) ?? "";
    t.match(body, `-d 'it'\\''s "$(touch /tmp/x)" \`id\`'`);
  },
);

/** Checks what a viewer and these roles see and may do. */
async function playRoles(
  t: Test,
  world: World,
  { url, roles }: { readonly url: string; readonly roles: readonly string[] },
): Promise<void> {
  await world.join(t, "ann", { deviceId: "phone-1" });
  const { id } = await world.newGroup(["ann"]);
  await world.send("ann", { id, type: 2 }, "for operators");
  const wrong = await openConsole(t, await browser, { url });
  await wrong.getByLabel("Username").fill("admin");
  await wrong.getByLabel("Password").fill("guess");
  await wrong.getByRole("button", { name: "Log in" }).click();
  await wrong.getByText("Invalid username or password").waitFor();

  const viewer = await openConsole(t, await browser, { url });
  await logIn(viewer, "viewer", "right");
  await visit(viewer, "#/sessions", "Sessions");
  await main(viewer).getByText("phone-1").waitFor();
  t.equal(await viewer.getByRole("button", { name: "Kick" }).count(), 0, "a viewer cannot kick");
  await visit(viewer, `#/channel?type=2&id=${id}`, id);
  await main(viewer).getByText("messages:write").waitFor();
  t.equal(await main(viewer).getByText("for operators").count(), 0);
  const stored = String(await viewer.evaluate('sessionStorage.getItem("jindou.console")'));
  const refusal = await fetch(`${url}/conn/kick`, {
    method: "POST",
    headers: { authorization: `Bearer ${JSON.parse(stored).token}`, "jindou-dialect": "jindou" },
    body: JSON.stringify({ uid: "ann", conn_id: "x" }),
  });
  t.equal(refusal.status, 403, "the API refuses the call as well");
  t.same(await viewer.context().cookies(), []);
  await viewer.reload();
  await viewer.getByRole("button", { name: "Log out" }).waitFor();
  await viewer.getByRole("button", { name: "Log out" }).click();
  await viewer.getByLabel("Username").waitFor();
  t.equal(await viewer.evaluate("sessionStorage.length"), 0);

  for (const role of roles) {
    const page = await openConsole(t, await browser, { url });
    await logIn(page, role, "right");
    await visit(page, `#/channel?type=2&id=${id}`, id);
    await main(page).getByText("for operators").waitFor();
    await visit(page, "#/sessions", "Sessions");
    await page.getByRole("button", { name: "Kick" }).waitFor();
    if (role === "operator") continue;
    await page.getByRole("button", { name: "Kick" }).click();
    await page.getByRole("button", { name: "End this session" }).click();
    await main(page).getByText("No session matches.").waitFor();
  }
}

t.test(
  "admin, operator and viewer can log in to the console, and see the data and buttons that their permissions allow",
  async (t) => {
    const world = await startWorld(t, MANAGERS);
    const { call } = world;
    const admin = await call("/manager/login", { username: "admin", password: "right" });
    const headers = { authorization: `Bearer ${admin.body.token}` };
    const authorized = worldOf({
      ...world,
      apiPort: world.apiPort,
      clientPort: world.clientPort,
      call: (path, body, more) => call(path, body, { ...headers, ...more }),
    });
    await playRoles(t, authorized, { url: addressOf(world), roles: ["operator", "admin"] });
  },
);

t.test(
  "in the console of a node with api.dialect = wukongim, viewer and admin see the data and buttons that their permissions allow",
  async (t) => {
    const broker = await startBroker(t, { ...MANAGERS, JINDOU_API_DIALECT: "wukongim" });
    const plain = { "jindou-dialect": "jindou" };
    const account = { username: "admin", password: "right" };
    const { body } = await broker.call("/manager/login", account, plain);
    const headers = { ...plain, authorization: `Bearer ${body.token}` };
    const call: World["call"] = (path, body, more) =>
      broker.call(path, body, { ...headers, ...more });
    const { apiPort, clientPort } = broker;
    const world = worldOf({ ...broker, apiPort, clientPort, call });
    await playRoles(t, world, { url: addressOf(broker), roles: ["admin"] });
  },
);

t.test(
  "an operator can log in to the console by pasting the static API token, and a wrong token is refused",
  async (t) => {
    const token = "a-static-token-of-a-backend";
    const world = await startWorld(t, { JINDOU_API_TOKEN: token });
    const page = await openConsole(t, await browser, { url: addressOf(world) });
    await page.getByRole("button", { name: "Use a token instead" }).click();
    const input = page.getByLabel("Static API token");
    await input.fill("wrong");
    await page.getByRole("button", { name: "Log in" }).click();
    await page.getByRole("alert").waitFor();
    await input.fill(token);
    await page.getByRole("button", { name: "Log in" }).click();
    await page.getByRole("heading", { level: 1, name: "Overview" }).waitFor();
    await visit(page, "#/settings", "Settings");
    await main(page).getByText("api.token").waitFor();
    t.notMatch(await page.locator("body").textContent(), token);
    await visit(page, "#/api", "API");
    await page.getByRole("button", { name: "GET /varz" }).click();
    const line = await page.locator(".curl code").textContent();
    t.match(line, "Bearer $JINDOU_TOKEN");
  },
);

t.test(
  "every page of the console is accessible and fits a light window of 1280 pixels and a dark window of 360 pixels, and the menu can be used by keyboard",
  async (t) => {
    const world = await startWorld(t);
    await world.join(t, "ann", { deviceId: "phone-1" });
    const group = await world.newGroup(["ann", "ben"]);
    await world.send("ann", group, "hello");
    const pages = [
      ["#/overview", "Overview"],
      ["#/sessions", "Sessions"],
      ["#/sessions?state=closed", "Sessions"],
      ["#/user?uid=ann", "ann"],
      ["#/channel", "Channel"],
      [`#/channel?type=2&id=${group.id}`, group.id],
      ["#/message", "Message"],
      ["#/api", "API"],
      ["#/settings", "Settings"],
    ] as const;
    for (const [width, scheme] of [
      [1280, "light"],
      [360, "dark"],
    ] as const) {
      const page = await openConsole(t, await browser, { url: addressOf(world), width, scheme });
      for (const [target, heading] of pages) {
        await visit(page, target, heading);
        await page.waitForLoadState("networkidle");
        const what = `${target} at ${width}, ${scheme}`;
        await assertFits(t, page, what);
        await checkAccessible(t, page, what);
      }
    }
    const page = await openConsole(t, await browser, { url: addressOf(world) });
    await page.getByRole("heading", { level: 1, name: "Overview" }).waitFor();
    for (const expected of ["Skip to the page", "Jindou", "Overview", "Sessions"]) {
      await page.keyboard.press("Tab");
      const focused = await page.evaluate("document.activeElement.textContent.trim()");
      t.equal(focused, expected);
    }
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { level: 1, name: "Sessions" }).waitFor();
  },
);

t.test("the console reads the first page of sessions with one call", async (t) => {
  const world = await startWorld(t);
  for (const uid of ["a", "b", "c"]) await world.join(t, uid);
  const page = await openConsole(t, await browser, { url: addressOf(world) });
  const calls: string[] = [];
  page.on("request", (call) => {
    const { pathname, search } = new URL(call.url());
    if (pathname === "/connz" && !search.includes("closed")) calls.push(search);
  });
  await visit(page, "#/sessions", "Sessions");
  await main(page).getByText("1–3 of 3").waitFor();
  t.same(calls, ["?sort=idDesc&limit=100"]);
});

/** Starts a proxy that sends each request to the next node. Returns its address. */
async function startProxy(t: Test, ports: readonly number[]): Promise<string> {
  let turn = 0;
  const server = createServer((incoming, outgoing) => {
    turn += 1;
    const { method, url: path, headers } = incoming;
    const port = ports[turn % ports.length];
    const call = request({ host: "127.0.0.1", port, method, path, headers }, (response) => {
      outgoing.writeHead(response.statusCode ?? 502, response.headers);
      response.pipe(outgoing);
    });
    call.on("error", () => outgoing.destroy());
    incoming.pipe(call);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  t.teardown(() => {
    server.closeAllConnections();
    server.close();
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

t.test(
  "behind a proxy that alternates between three nodes, the console does not mix the nodes' figures, and shows and ends sessions on other nodes",
  async (t) => {
    const redis = await startRedis(t);
    const names = ["n1", "n2", "n3"];
    const nodes = await Promise.all(
      names.map(async (name) =>
        startBroker(
          t,
          {
            ...MANAGERS,
            JINDOU_REDIS_URL: redis.url,
            JINDOU_NODE_ID: name,
            JINDOU_API_LISTEN: "127.0.0.1:0",
          },
          await tempFolder(t),
        ),
      ),
    );
    const [first] = nodes;
    if (first === undefined) throw new Error("no node was started");
    const account = { username: "admin", password: "right" };
    const { body } = await first.call("/manager/login", account);
    const headers = { authorization: `Bearer ${body.token}` };
    for (const [index, node] of nodes.entries()) {
      const call: World["call"] = (path, body) => node.call(path, body, headers);
      const { apiPort, clientPort } = node;
      const world = worldOf({ ...node, apiPort, clientPort, call });
      await world.join(t, index === 2 ? "ann" : `user-${index}`, {
        flag: 0,
        deviceId: `d-${index}`,
      });
      if (index === 1) await world.join(t, "ann", { flag: 1, deviceId: "d-9" });
    }
    const url = await startProxy(
      t,
      nodes.map(({ apiPort }) => apiPort),
    );
    const page = await openConsole(t, await browser, { url });
    await logIn(page, "admin", "right");
    await main(page).getByRole("table").getByText("n3").waitFor();
    for (const name of names) {
      await page.getByLabel("Node", { exact: true }).selectOption(name);
      await page.getByText(new RegExp(`^Node ${name} (is healthy|works)`)).waitFor();
    }

    await visit(page, "#/sessions", "Sessions");
    for (const [index, name] of names.entries()) {
      await page.getByLabel("Node", { exact: true }).selectOption(name);
      await main(page).getByText(`on node ${name}`).waitFor();
      const rows = await main(page).locator("tbody tr").allTextContents();
      const devices = index === 1 ? ["d-1", "d-9"] : [`d-${index}`];
      t.equal(rows.length, devices.length, name);
      for (const device of devices)
        t.ok(
          rows.some((row) => row.includes(device)),
          `${device} on ${name}`,
        );
    }
    await visit(page, "#/user?uid=ann", "ann");
    await main(page).getByText("Online with 2 sessions").waitFor();
    const row = main(page).getByRole("listitem").filter({ hasText: "d-9" });
    await row.getByRole("button", { name: "Kick" }).click();
    await row.getByRole("button", { name: "End this session" }).click();
    await main(page).getByText("Online with 1 session").waitFor();
  },
);

/** Fills a node for the pictures: members who talk, a stream, and clients that were closed. */
async function fillForPictures(t: Test, world: World): Promise<() => Promise<void>> {
  const names = ["alice", "bob", "carol", "dave", "erin", "frank", "grace", "heidi"];
  const visitors = Array.from({ length: 40 }, (_, index) => `visitor-${index + 1}`);
  const channel = { channel_type: 2, subscribers: [...names, ...visitors] };
  for (const channel_id of ["lobby", "support-42", "design"])
    await world.ok("/channel", { ...channel, channel_id });
  for (const [index, uid] of [...names, ...visitors].entries()) {
    const flag = index % 3 === 0 ? 0 : index % 3 === 1 ? 1 : 2;
    const deviceId = `${["phone", "browser", "desk"][flag]}-${100 + index}`;
    const client = await world.join(t, uid, { flag, deviceId });
    if (uid === "visitor-7") client.kill();
    if (uid === "visitor-9") await client.close();
    if (uid === "carol") await world.ok("/user/device_quit", { uid, device_flag: -1 });
  }
  const attempt = connectNative(t, { port: world.clientPort, uid: "mallory", token: "guess" });
  await attempt.catch(() => undefined);
  const { body } = await world.call("/user/devices?uid=visitor-12");
  await world.ok("/conn/kick", { uid: "visitor-12", conn_id: body.sessions[0].session_id });
  const texts = ["Good morning", "The release is out", "Thanks, looks good", "Lunch at twelve?"];
  const lobby = { id: "lobby", type: 2 } as const;
  const support = { id: "support-42", type: 2 } as const;
  for (let at = 0; at < 400; at += 1) {
    const sender = names[(at * 5) % 7] ?? "alice";
    await world.send(sender, at % 6 === 0 ? support : lobby, texts[at % 4] ?? "");
    await new Promise((resolve) => setTimeout(resolve, 100 + (at % 40) * 4));
  }
  const stream = { client_msg_no: "answer", channel_id: "support-42", channel_type: 2 };
  return async () => {
    const event = (type: string, data: string) =>
      world.ok("/event", { ...stream, from_uid: "bob", event: { type, data } });
    await event("___TextMessageStart", "{}");
    await event(
      "___TextMessageContent",
      "The message was refused, because Eve is not a member of the ",
    );
    await event(
      "___TextMessageContent",
      "group. Add her with /channel/subscriber_add, then repeat the call",
    );
  };
}

t.test(
  "the docs have pictures of three console pages, light and dark",
  { timeout: 300_000 },
  async (t) => {
    const isWriting = process.env.JINDOU_TEST_PICTURES === "write";
    const world = await startWorld(t, { JINDOU_NODE_ID: "chat-1" });
    const page = await openConsole(t, await browser, { url: addressOf(world) });
    const startStream = isWriting ? await fillForPictures(t, world) : undefined;
    await checkPictures(t, page, "console-overview");
    await visit(page, "#/sessions?state=closed", "Sessions");
    if (isWriting) await page.getByText("mallory").waitFor();
    await checkPictures(t, page, "console-closed");
    await startStream?.();
    await visit(page, "#/channel?type=2&id=support-42", "support-42");
    if (isWriting) await page.getByText("stream active").waitFor();
    await checkPictures(t, page, "console-channel");
  },
);
