// WuKongIM's own JavaScript SDK (npm 1.0.4) as an app uses it, with a native client as the peer, in
// Node and in headless Chromium.

import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import type { Test } from "tap";
import { WebSocket } from "ws";
import { launchBrowser, openPage } from "../client/browser.ts";
import { DRIVER } from "../support/driver.ts";
import { HMAC_KEY, keyFile, mint, SECRET } from "../support/mint.ts";
import { t } from "../support/suite.ts";
import { eventually, person, startWorld, untilReceived, type World } from "./world.ts";
import type * as Agent from "./wukongim-agent.ts";

const AGENT = fileURLToPath(new URL("wukongim-agent.ts", import.meta.url));
const CONNECTED = 1;
const FAILED = 3;
const KICKED = 4;
const IDLE_S = 8;
const HEARTBEAT_MS = 1000;

/** An app with its own copy of the SDK. */
interface App {
  call<K extends keyof typeof Agent>(
    name: K,
    ...args: Parameters<(typeof Agent)[K]>
  ): Promise<ReturnType<(typeof Agent)[K]>>;
}

type AppLauncher = (t: Test) => Promise<App>;

let script: Promise<string> | undefined;

/** Runs the SDK in Node without its log, because the log would be mixed into the TAP output. */
const inNode: AppLauncher = async (t) => {
  script ??= build({
    ...{ entryPoints: [AGENT], bundle: true, write: false },
    ...{ platform: "browser", format: "iife", globalName: "bundled" },
  }).then(({ outputFiles }) => outputFiles.map(({ text }) => text).join(""));
  const make = new Function(
    ...["WebSocket", "console", "setInterval", "setTimeout"],
    `${await script}; return bundled;`,
  );
  const timers = clearableTimers();
  const agent: typeof Agent = make(
    ...[WebSocket, { log: () => undefined }, timers.interval, timers.timeout],
  );
  t.teardown(() => {
    agent.stop();
    timers.clear();
  });
  return {
    async call(name, ...args) {
      const run = agent[name] as (...args: unknown[]) => never;
      return run(...args);
    },
  };
};

/**
 * Returns timers for a copy of the SDK. The SDK continues its heartbeat and its reconnects even
 * after a kick, so the test must be able to clear its timers.
 */
function clearableTimers() {
  const handles: NodeJS.Timeout[] = [];
  let isOver = false;
  const register = (handle: NodeJS.Timeout): NodeJS.Timeout => {
    handles.push(handle);
    if (isOver) clearTimeout(handle);
    return handle;
  };
  return {
    interval: (run: () => void, ms: number) => register(setInterval(run, ms)),
    timeout: (run: () => void, ms: number) => register(setTimeout(run, ms)),
    clear() {
      isOver = true;
      for (const handle of handles) clearTimeout(handle);
    },
  };
}

const world = await startWorld(t, {
  JINDOU_CLIENT_IDLE_TIMEOUT_S: `${IDLE_S}`,
  JINDOU_AUTH_CLIENTS: "token+jwt",
  JINDOU_AUTH_JWT_ALGORITHMS: "HS256",
  JINDOU_AUTH_JWT_SECRET_FILE: await keyFile(t, SECRET),
});

async function start(
  app: App,
  uid: string,
  { token = `token-${uid}`, level = 0 as 0 | 1, target = world as World } = {},
): Promise<void> {
  await target.register(uid, { flag: 1, level });
  const addr = `ws://127.0.0.1:${target.clientPort}`;
  await app.call("start", {
    ...{ addr, uid, token },
    heartbeatInterval: HEARTBEAT_MS,
  });
}

/** Waits until `holds` returns true for the log of the app's listeners. Returns the log. */
async function untilLogged(
  app: App,
  holds: (log: Agent.ListenerLog) => boolean,
): Promise<Agent.ListenerLog> {
  let log = await app.call("listenerLog");
  await eventually(async () => {
    log = await app.call("listenerLog");
    return holds(log);
  });
  return log;
}

const isConnected = ({ statuses }: Agent.ListenerLog) => statuses.at(-1) === CONNECTED;

async function assertTalks(t: Test, launch: AppLauncher): Promise<void> {
  const startedMs = performance.now();
  const [ann, ben, eve] = [world.name("ann"), world.name("ben"), world.name("eve")];
  const channel = await world.newGroup([ann, ben]);
  const closed = await world.newGroup([ben]);
  const native = await world.join(t, ben);
  const app = await launch(t);
  await start(app, ann);
  await untilLogged(app, isConnected);
  await world.untilSubscribed();

  await app.call("send", ben, 1, "to a person ü");
  await app.call("send", channel.id, 2, "to the group");
  await app.call("send", closed.id, 2, "to strangers");
  t.same(
    (await untilReceived(native, 2)).toSorted(),
    ["to a person ü", "to the group"],
    "the native client gets both messages",
  );
  const { acks } = await untilLogged(app, ({ acks }) => acks.length === 3);
  t.same(
    acks.map(({ reason }) => reason).toSorted(),
    [1, 1, 3],
    "two messages are accepted, and one is refused with a reason",
  );

  await native.send(person(ann), "from a person 🐒");
  await native.send(channel, "from the group");
  await world.send(eve, person(ann), "by HTTP");
  const { messages } = await untilLogged(app, (log) => log.messages.length >= 3);
  t.same(
    messages.toSorted((a, b) => a.text.localeCompare(b.text)),
    [
      { text: "by HTTP", from: eve, channel: eve, type: 1, seq: 1 },
      { text: "from a person 🐒", from: ben, channel: ben, type: 1, seq: 2 },
      {
        text: "from the group",
        from: ben,
        channel: channel.id,
        type: 2,
        seq: 2,
      },
    ],
    "the app gets the messages",
  );

  const payload = { type: 99, cmd: "typing", param: {} };
  await world.send(ben, person(ann), "", {
    payload: Buffer.from(JSON.stringify(payload)).toString("base64"),
    header: { sync_once: 1 },
  });
  await untilLogged(app, ({ commands }) => commands.includes("typing"));
  await world.ok("/event", {
    ...{ channel_id: channel.id, channel_type: 2, from_uid: ben },
    client_msg_no: "e-1",
    event: { type: "order.paid", data: "{}", id: "ev-1" },
  }); // an EVENT packet would break this version of the SDK

  if (DRIVER === "embedded")
    await eventually(async () => performance.now() > startedMs + (IDLE_S + 1) * 1000, 1000);
  t.same(
    (await app.call("listenerLog")).statuses,
    [CONNECTED],
    "the SDK's pings keep it connected beyond the idle time-out",
  );

  await app.call("drop");
  await untilLogged(app, ({ statuses }) => statuses.length > 1);
  await untilLogged(app, isConnected);
  await native.send(person(ann), "after the reconnect");
  await untilLogged(app, ({ messages }) => messages.at(-1)?.text === "after the reconnect");
}

async function assertRefused(t: Test, launch: AppLauncher): Promise<void> {
  const uid = world.name("ann");
  const app = await launch(t);
  await start(app, uid, { token: "wrong" });
  const { statuses, reconnects } = await untilLogged(app, (log) => log.statuses.includes(FAILED));
  t.equal(statuses[0], FAILED, "the app is notified that the connect failed");
  t.equal(reconnects, false, "the app does not reconnect");
}

async function assertKicked(t: Test, launch: AppLauncher): Promise<void> {
  const uid = world.name("ann");
  const [first, second] = [await launch(t), await launch(t)];
  await start(first, uid, { level: 1 });
  await untilLogged(first, isConnected);
  await start(second, uid, { level: 1 });
  await untilLogged(second, isConnected);
  const { reconnects } = await untilLogged(first, ({ statuses }) => statuses.includes(KICKED));
  t.equal(reconnects, false, "a kicked app does not reconnect by itself");
}

const browser = DRIVER === "embedded" ? launchBrowser(t) : undefined;
browser?.catch(() => undefined); // each test that uses the browser reports the failure

const inChromium: AppLauncher = async (t) => {
  if (browser === undefined) throw new Error("there is no browser");
  const page = await openPage(t, await browser, AGENT);
  return {
    call: (name, ...args) =>
      page.evaluate(
        ([name, args]) => {
          const { bundled } = globalThis as unknown as {
            bundled: Record<string, (...args: unknown[]) => never>;
          };
          return bundled[name]?.(...args) as never;
        },
        [name, args] as const,
      ),
  };
};

const PLACES: readonly (readonly [string, AppLauncher])[] = [
  ["Node", inNode],
  ...(browser === undefined ? [] : [["Chromium", inChromium] as const]),
];

const everywhere = (check: (t: Test, launch: AppLauncher) => Promise<void>) =>
  async function run(t: Test): Promise<void> {
    await Promise.all(PLACES.map(([, launch]) => check(t, launch)));
  };

const where = PLACES.map(([place]) => place).join(" and ");
const options = { timeout: 300_000 };
t.test(
  `WuKongIM's SDK in ${where} does not reconnect after a wrong token`,
  options,
  everywhere(assertRefused),
);
t.test(
  `WuKongIM's SDK in ${where} does not reconnect after a kick`,
  options,
  everywhere(assertKicked),
);
t.test(
  `WuKongIM's SDK in ${where} sends, receives, pings and reconnects`,
  options,
  everywhere(assertTalks),
);

// Covers [feature: JWT]
t.test("WuKongIM's SDK logs in with a JWT, and a wrong JWT is refused", async (t) => {
  const uid = world.name("ann");
  const app = await inNode(t);
  const token = await mint(HMAC_KEY, { sub: uid, device_flag: 1 });
  const connect = {
    ...{ addr: `ws://127.0.0.1:${world.clientPort}`, token },
    heartbeatInterval: HEARTBEAT_MS,
  };
  await app.call("start", { ...connect, uid });
  await untilLogged(app, isConnected);
  t.same(await world.status(uid), { uid, online: 1, device_flag: 1 });
  const refused = await inNode(t);
  const other = world.name("ben");
  await refused.call("start", { ...connect, uid: other });
  await untilLogged(refused, ({ statuses }) => statuses.includes(FAILED));
  t.equal((await world.status(other)).online, 0);
});
