// Silent connections, half-sent bodies and ambiguous request heads. Uses its own broker process
// with 256 file descriptors. The hostile peers have their own addresses. JINDOU_TEST_SOCKETS and
// JINDOU_TEST_HALF_BODIES set the counts.

import { spawnSync } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { connect, type Socket } from "node:net";
import { setTimeout as delay } from "node:timers/promises";
import t, { type Test } from "tap";
import { launchBroker, startBroker, textPayload } from "../support/broker.ts";
import { leastBelow } from "../support/least.ts";
import { connectNative } from "../support/native-client.ts";

const SILENT = Number(process.env.JINDOU_TEST_SOCKETS ?? 300);
const HALF_BODIES = Number(process.env.JINDOU_TEST_HALF_BODIES ?? 60);
const HALF_BODY_BYTES = 900_000;
const BUDGET_BYTES = 8 * 1024 * 1024;
const TIMEOUT_MS = 120_000;
const MAX_FILES = 256;
/** Maximum share of one core that an idle process may use. A process that spins uses 76 %. */
const IDLE_CPU = 0.4;

const isLinux = process.platform === "linux";
const skip = isLinux ? false : "needs the limits and loopback addresses of Linux";

t.test(
  "a broker with few file descriptors withstands silent connections and half-sent requests",
  { skip },
  async (t) => {
    const launched = await launchBroker(
      t,
      {
        JINDOU_AUTH_CLIENTS: "none",
        JINDOU_SOCKETS_MAX_UNAUTHENTICATED_PER_ADDRESS: "256",
        JINDOU_API_MAX_PENDING_BODY_BYTES: `${BUDGET_BYTES}`,
      },
      undefined,
      { maxFiles: MAX_FILES },
    );
    const broker = await launched.ready();
    const { pid } = broker.process;
    if (pid === undefined) throw new Error("there is no process");
    const port = broker.apiPort;

    const metric = async (name: string): Promise<number> => {
      const page = await rawCall(port, "GET", "/metrics");
      const line = page.split("\n").find((text) => text.startsWith(`${name} `));
      return Number(line?.trim().split(" ").at(-1) ?? 0);
    };
    const send = async (n: number): Promise<string> =>
      statusOf(
        await rawCall(
          port,
          "POST",
          "/message/send",
          JSON.stringify({
            from_uid: "a",
            channel_id: "b",
            channel_type: 1,
            payload: textPayload("x"),
            client_msg_no: `m${n}`,
          }),
        ),
      );

    await t.test(
      "silent connections over the limit for one address are closed, and other addresses are served",
      async (t) => {
        const silent = openSockets(t, SILENT, { port, from: "127.0.0.2" });
        await until("the connections over the limit are closed", () => {
          const openCount = silent.filter((peer) => peer.isOpen).length;
          return openCount > 0 && openCount <= MAX_FILES / 2;
        });
        t.ok((await idleShare(pid)) < IDLE_CPU, "the process is idle");
        for (let n = 0; n < 60; n++)
          t.equal(await send(n), "200", "a send on a new connection is served");
        const refused = await metric('jindou_sockets_refused_total{reason="address"}');
        t.ok(refused >= SILENT - MAX_FILES / 2, `${refused} sockets were refused`);
        const max = await metric("jindou_sockets_max");
        t.ok(max > 0 && max < MAX_FILES, `the limit is ${max} sockets`);
        t.ok((await metric("jindou_sockets")) <= max);
        for (const { socket } of silent) socket.destroy();
        await until("the address may connect again", async () =>
          (await rawCall(port, "GET", "/healthz", "", "127.0.0.2")).startsWith("HTTP/1.1 200"),
        );
      },
    );

    await t.test(
      "a process without free file descriptors closes new connections without spinning, and accepts connections again when descriptors are free",
      async (t) => {
        await until("all connections are closed", async () => openFiles(pid) < 60);
        setMaxFiles(pid, openFiles(pid) + 2);
        const waiting = openSockets(t, 20, { port, from: "127.0.0.3" });
        await until("connections are refused", () =>
          broker.output().includes('"reason":"descriptors"'),
        );
        t.ok((await idleShare(pid)) < IDLE_CPU, "the process is idle");
        for (const { socket } of waiting) socket.destroy();
        setMaxFiles(pid, MAX_FILES);
        await until("calls are answered again", async () =>
          (await rawCall(port, "GET", "/healthz")).startsWith("HTTP/1.1 200"),
        );
      },
    );

    await t.test(
      "half-sent bodies over the memory budget are answered with 503 while other calls are served",
      async (t) => {
        const halves = openSockets(t, HALF_BODIES, { port, from: "127.0.0.4" });
        for (const { socket } of halves) {
          socket.write(
            `POST /message/send HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: ${HALF_BODY_BYTES + 10}\r\n\r\n`,
          );
          socket.write(Buffer.alloc(HALF_BODY_BYTES, " "));
        }
        const fitting = Math.floor(BUDGET_BYTES / HALF_BODY_BYTES);
        await until("the other bodies are refused", () => {
          const refused = halves.filter((peer) => /^HTTP\S+ 503/.test(peer.text));
          return refused.length >= HALF_BODIES - fitting;
        });
        const pending = await metric("jindou_http_bodies_pending_bytes");
        t.ok(pending <= BUDGET_BYTES, `${pending} bytes are pending`);
        for (const { text } of halves.filter((peer) => peer.text !== ""))
          if (!/^Retry-After: \d+\r$/im.test(text)) t.fail(text);
        t.equal(await send(1000), "200", "a body that arrives in one piece needs no budget");
        const login = `POST /manager/login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: ${HALF_BODY_BYTES}\r\n\r\n{`;
        const refusal = await rawRequest(port, login);
        t.equal(
          statusOf(refusal),
          "413",
          "the budget of callers without a credential is far lower",
        );
        for (const { socket } of halves) socket.destroy();
        await until("the budget is free", async () => {
          const pending = await metric("jindou_http_bodies_pending_bytes");
          return pending === 0;
        });
      },
    );

    await t.test(
      "a request whose head is ambiguous or has no valid host is refused with 400",
      async (t) => {
        for (const lines of [
          "Host: 127.0.0.1\r\nContent-Length: 3\r\nContent-Length: 5",
          "Host: 127.0.0.1\r\nContent-Length: 3\r\nContent-Length: 3",
          "Host: 127.0.0.1\r\nContent-Length:",
          "Host: 127.0.0.1\r\nTransfer-Encoding: gzip",
          "Host: 127.0.0.1\r\nTransfer-Encoding: gzip, chunked",
          "Host: 127.0.0.1\r\nTransfer-Encoding: chunked, identity",
          "Host: 127.0.0.1\r\nTransfer-Encoding:",
          "Host: 127.0.0.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
          "Host: 127.0.0.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked",
          "Host: 127.0.0.1\r\nHost: evil.example",
          "Host: 127.0.0.1\r\nHost: 127.0.0.1",
          "Host:",
          "Host: 127.999.1.1",
          "Host: 127.1",
          "Host: [::1",
          "Host: [::zz]:80",
          "Host: 127.0.0.1:99999",
          "Host: a b",
          "Host: user@127.0.0.1",
        ])
          for (const line of ["POST /message/send", "GET /healthz", "GET /none"]) {
            const response = await rawRequest(
              port,
              `${line} HTTP/1.1\r\n${lines}\r\n\r\n3\r\nabc\r\n0\r\n\r\n`,
            );
            t.equal(statusOf(response), "400", `${line} ${lines} is refused`);
          }
        for (const host of ["127.0.0.1", "LOCALHOST:1", "[::1]:5001", "a-b.c_d"])
          t.equal(
            statusOf(await rawRequest(port, `GET /healthz HTTP/1.1\r\nHost: ${host}\r\n\r\n`)),
            "200",
            `the host ${host} is accepted`,
          );
        const upgrade =
          "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        t.equal(statusOf(await rawRequest(broker.clientPort, upgrade)), "400");
      },
    );

    await t.test("the process drains and exits with 0 after the preceding attacks", async (t) => {
      t.equal(await broker.terminate(), 0);
    });
  },
);

t.test(
  "a call with a missing or wrong credential is refused before its body has arrived",
  async (t) => {
    const broker = await startBroker(t, { JINDOU_API_TOKEN: "secret" });
    for (const [credential, status] of [
      ["X: y", "401"],
      ["token: wrong", "401"],
      ["Authorization: Bearer wrong", "401"],
    ] as const) {
      const half = `POST /message/send HTTP/1.1\r\nHost: a\r\n${credential}\r\nContent-Length: 1000\r\n\r\n{`;
      const response = await rawRequest(broker.apiPort, half);
      t.equal(statusOf(response), status, `${credential} is refused`);
      t.match(response, /^connection: close\r$/im, "the connection is closed");
    }
    const [authorized] = openSockets(t, 1, { port: broker.apiPort });
    if (authorized === undefined) throw new Error("the socket is missing");
    authorized.socket.write(
      "POST /user/onlinestatus HTTP/1.1\r\nHost: a\r\ntoken: secret\r\nContent-Length: 5\r\n\r\n[",
    );
    t.equal((await broker.call("/healthz")).status, 200);
    t.equal(authorized.text, "", "a call with the right credential waits for its body");
    authorized.socket.write('"a"]');
    await until("the response is complete", () => isComplete(authorized.text));
    t.equal(statusOf(authorized.text), "200");
  },
);

t.test("the metrics count a disconnected slow reader as `slow_reader`", async (t) => {
  const broker = await startBroker(t, {
    JINDOU_AUTH_CLIENTS: "none",
    JINDOU_CLIENT_MAX_FRAMES_PER_SECOND: "0",
    JINDOU_CLIENT_MAX_BUFFERED_BYTES: "163840",
  });
  const port = broker.clientPort;
  const endedCount = async (reason: string): Promise<number> => {
    const { body } = await broker.call("/metrics");
    const name = `jindou_connections_ended_total{reason="${reason}"} `;
    const line = String(body)
      .split("\n")
      .find((text) => text.startsWith(name));
    return Number(line?.slice(name.length) ?? 0);
  };
  const reader = await connectNative(t, { port, uid: "reader" });
  const sender = await connectNative(t, { port, uid: "sender" });
  reader.pause();
  const payload = { type: 1, content: "x".repeat(40_000) };
  const isCounted = async () => (await endedCount("slow_reader")) > 0;
  while (!(await isCounted()))
    for (let n = 0; n < 20; n++) await sender.send({ type: 1, id: "reader" }, payload);
  t.equal(await endedCount("slow_reader"), 1);
  t.equal(await endedCount("goodbye"), 0);
});

// --- Peers ---------------------------------------------------------------------------------------

interface Peer {
  readonly socket: Socket;
  /** Everything the server has sent. */
  text: string;
  isOpen: boolean;
}

function openSockets(
  t: Test,
  count: number,
  { port, from = "127.0.0.1" }: { readonly port: number; from?: string },
): readonly Peer[] {
  return Array.from({ length: count }, () => {
    const socket = connect({ host: "127.0.0.1", port, localAddress: from });
    const peer: Peer = { socket, text: "", isOpen: true };
    socket.on("data", (data) => {
      peer.text += data.toString("latin1");
    });
    socket.on("error", () => undefined); // `close` follows
    socket.on("close", () => {
      peer.isOpen = false;
    });
    t.teardown(() => socket.destroy());
    return peer;
  });
}

/**
 * Sends a request on a new connection. Returns everything received until the response is complete
 * or the connection is closed.
 */
async function rawRequest(port: number, request: string, from = "127.0.0.1"): Promise<string> {
  const socket = connect({ host: "127.0.0.1", port, localAddress: from });
  let text = "";
  socket.on("data", (data) => {
    text += data.toString("latin1");
  });
  let isOver = false;
  socket.on("error", () => undefined);
  socket.on("close", () => {
    isOver = true;
  });
  socket.write(request);
  await until("the response is complete", () => isOver || isComplete(text));
  socket.destroy();
  return text;
}

function isComplete(text: string): boolean {
  const at = text.indexOf("\r\n\r\n");
  const length = /^content-length: (\d+)\r$/im.exec(text)?.[1];
  return at >= 0 && length !== undefined && text.length >= at + 4 + +length;
}

function rawCall(
  port: number,
  method: string,
  path: string,
  body = "",
  from?: string,
): Promise<string> {
  const head = `${method} ${path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close`;
  const length = body === "" ? "" : `\r\nContent-Length: ${body.length}`;
  return rawRequest(port, `${head}${length}\r\n\r\n${body}`, from);
}

function statusOf(response: string): string {
  return response.slice("HTTP/1.1 ".length, "HTTP/1.1 200".length);
}

async function until(condition: string, holds: () => boolean | Promise<boolean>): Promise<void> {
  const deadlineMs = performance.now() + TIMEOUT_MS;
  while (!(await holds())) {
    if (performance.now() > deadlineMs) throw new Error(`timed out waiting until ${condition}`);
    await delay(20);
  }
}

// --- The process ---------------------------------------------------------------------------------

/**
 * Returns the share of one core that the process uses while no calls are made. Measures again if
 * the share is `IDLE_CPU` or more, because the process may still be busy with earlier calls.
 */
function idleShare(pid: number): Promise<number> {
  return leastBelow(IDLE_CPU, 5, async () => {
    const startMs = performance.now();
    const before = cpuMs(pid);
    await delay(2000);
    return (cpuMs(pid) - before) / (performance.now() - startMs);
  });
}

function cpuMs(pid: number): number {
  const [, stat = ""] = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ");
  const fields = stat.split(" ");
  return (Number(fields[11]) + Number(fields[12])) * 10; // the unit is 10 ms
}

function openFiles(pid: number): number {
  return readdirSync(`/proc/${pid}/fd`).length;
}

function setMaxFiles(pid: number, soft: number): void {
  const args = [`--pid=${pid}`, `--nofile=${soft}:${MAX_FILES}`];
  const { status, stderr } = spawnSync("prlimit", args);
  if (status !== 0) throw new Error(stderr.toString());
}
