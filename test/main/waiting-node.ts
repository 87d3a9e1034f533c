// Starts nodes that cannot use their store yet, and checks their replies while they wait and
// afterwards.

import { connect } from "node:net";
import { setTimeout as pause } from "node:timers/promises";
import type { Test } from "tap";
import { freePort } from "../support/redis.ts";
import { type JindouProcess, spawnJindou } from "./jindou.ts";

/** Log line of a node that serves. */
export const READY = "The node is ready";

/** A node that may still wait for its store. */
interface WaitingNode extends JindouProcess {
  readonly apiPort: number;
  readonly clientPort: number;
  /** Calls the API: POST if there is a body. */
  call(path: string, body?: unknown): Promise<Response>;
  /** Waits until the API listens. */
  healthy(): Promise<void>;
}

/** Starts a node whose ports are known before it listens. */
export async function startNode(
  t: Test,
  settings: Readonly<Record<string, string>>,
  preload?: string,
  prefix: readonly string[] = [],
): Promise<WaitingNode> {
  const [apiPort, clientPort] = [await freePort(), await freePort()];
  const env = {
    JINDOU_API_LISTEN: `127.0.0.1:${apiPort}`,
    JINDOU_CLIENT_LISTEN: `127.0.0.1:${clientPort}`,
    JINDOU_ADMIN_PASSWORD: "right",
    ...settings,
  };
  const call = (path: string, body?: unknown) =>
    fetch(`http://127.0.0.1:${apiPort}${path}`, {
      ...(body === undefined ? {} : { method: "POST", body: JSON.stringify(body) }),
    });
  const node = spawnJindou(t, [], { env, prefix, ...(preload && { preload }) });
  const healthy = async () => {
    while (!(await isListening(apiPort))) {
      if (node.child.exitCode !== null) throw new Error(`node exited: ${(await node.exit).stderr}`);
      await pause(20);
    }
  };
  return { ...node, apiPort, clientPort, call, healthy };
}

function isListening(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, "127.0.0.1");
    socket.on("connect", () => resolve(true)).on("error", () => resolve(false));
    socket.on("connect", () => socket.destroy());
  });
}

/** Checks the replies of a node that waits for its store. */
export async function checkWaiting(t: Test, node: WaitingNode): Promise<void> {
  t.equal((await node.call("/healthz")).status, 200);
  const token = { uid: "alice", token: "secret", device_flag: 0, device_level: 1 };
  const calls = [
    () => node.call("/readyz"),
    () => node.call("/metrics"),
    () => node.call("/migrate/result"),
    () => node.call("/user/token", token),
    () => node.call("/user/onlinestatus", ["alice"]),
    () => node.call("/manager/login", { username: "admin", password: "right" }),
  ];
  for (const call of calls) {
    const response = await call();
    const body = await response.text();
    t.equal(response.status, 503, body);
    t.ok(Number(response.headers.get("retry-after")) >= 1);
    t.match(JSON.parse(body), { code: "unavailable", error: /waits for its store/ });
  }
  t.notOk(await isListening(node.clientPort), "the client listener is closed");
}

/** Checks that a node serves after it has waited. */
export async function checkServing(t: Test, node: WaitingNode): Promise<void> {
  t.match(await node.logged(READY), { apiPort: node.apiPort, clientPort: node.clientPort });
  t.equal((await node.call("/readyz")).status, 200);
  t.ok(await isListening(node.clientPort));
  node.child.kill("SIGTERM");
  t.equal((await node.exit).code, 0);
}
