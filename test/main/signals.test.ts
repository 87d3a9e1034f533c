// Tests of signals that arrive after the first module was loaded: during the start, while the node
// is ready, under nohup, and as process 1 of a container, where the kernel drops a signal without a
// handler.

import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { setTimeout as pause } from "node:timers/promises";
import t, { type Test } from "tap";
import { type Invocation, type JindouProcess, nodeSettings, spawnJindou } from "./jindou.ts";

const DRAIN_MS = 500;
const SIGUSR2 = 12;
const TICKS_PER_S = 100;
/** CPU time in which Node.js itself starts on a slow machine. Loading all modules takes longer. */
const OWN_START_S = 0.2;
const IN_NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child"];
const CANNOT_UNSHARE = canRun(IN_NAMESPACE) ? false : "this machine does not allow PID namespaces";

function canRun([command = "", ...args]: readonly string[]): boolean {
  try {
    execFileSync(command, [...args, "true"], { stdio: "ignore" });
    return true;
  } catch {
    return false;
  }
}

/** Returns the id of the process that runs Node.js, or `undefined` if it does not run yet. */
function nodePid({ pid }: JindouProcess["child"], isInNamespace: boolean): number | undefined {
  if (!isInNamespace) return pid;
  const children = readFileSync(`/proc/${pid}/task/${pid}/children`, "utf8");
  return children === "" ? undefined : Number.parseInt(children, 10);
}

function handlesSignals(pid: number): boolean {
  const isNode = readFileSync(`/proc/${pid}/cmdline`, "utf8").startsWith(process.execPath);
  const caught = /SigCgt:\s*(\w+)/.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1] ?? "0";
  return isNode && (BigInt(`0x${caught}`) & (1n << BigInt(SIGUSR2 - 1))) !== 0n;
}

function cpuSeconds(pid: number): number {
  const fields = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1]?.split(" ") ?? [];
  return (Number(fields[11]) + Number(fields[12])) / TICKS_PER_S;
}

/** Returns the CPU time after which the Node.js process was first seen to handle signals. */
function secondsUntilHandled({ child }: JindouProcess, isInNamespace: boolean): Promise<number> {
  return new Promise((resolve, reject) => {
    const poll = setInterval(() => {
      try {
        const pid = nodePid(child, isInNamespace);
        if (pid === undefined || !handlesSignals(pid)) return;
        resolve(cpuSeconds(pid));
      } catch (error) {
        reject(error);
      }
      clearInterval(poll);
    }, 1);
  });
}

/**
 * Maximum number of starts until a process handles signals within `OWN_START_S` of CPU time. On a
 * busy machine, this test may notice the handlers late.
 */
const ATTEMPTS = 5;

/**
 * Starts the command, waits until it handles signals, and then waits another 100 ms. A start is
 * repeated if the process used `OWN_START_S` or more before it handled signals. Adds `kill`, which
 * sends a signal to the process of Node.js.
 */
async function startUntilHandled(t: Test, argv: readonly string[], invocation: Invocation) {
  const isInNamespace = invocation.prefix?.[0] === "unshare";
  let running = spawnJindou(t, argv, invocation);
  let handledS = await secondsUntilHandled(running, isInNamespace);
  for (let at = 1; at < ATTEMPTS && handledS >= OWN_START_S; at++) {
    running.child.kill("SIGKILL");
    await running.exit;
    running = spawnJindou(t, argv, invocation);
    handledS = await secondsUntilHandled(running, isInNamespace);
  }
  t.ok(
    handledS < OWN_START_S,
    `signals are handled after ${handledS} s of CPU time, before other modules are loaded`,
  );
  await pause(100);
  const kill = (signal: NodeJS.Signals) => {
    const pid = nodePid(running.child, isInNamespace);
    if (pid !== undefined) process.kill(pid, signal);
  };
  return { ...running, kill };
}

/** Delays in milliseconds, after `startUntilHandled` has returned, at which a signal is sent. */
const DELAYS_MS = [0, 100, 300, 800];

async function exitsAfterStop(t: Test, invocation: Invocation): Promise<void> {
  const env = await nodeSettings(t, DRAIN_MS);
  for (const [round, delayMs] of DELAYS_MS.entries()) {
    const signal = round % 2 === 0 ? "SIGTERM" : "SIGINT";
    const node = await startUntilHandled(t, ["start"], { ...invocation, env });
    await pause(delayMs);
    node.kill(signal);
    const { code, stderr } = await node.exit;
    t.equal(code, 0, `${signal} ${100 + delayMs} ms after the start ends the node with 0`);
    t.equal(stderr, "");
  }
  const node = spawnJindou(t, [], { env });
  await node.logged("The node is ready");
  node.child.kill("SIGTERM");
  t.match(await node.exit, { code: 0 }, "the next start can use the data folder");
}

t.test(
  "once a node handles signals, it exits with 0 on SIGTERM or SIGINT, even during its start",
  (t) => exitsAfterStop(t, {}),
);

t.test(
  "once a node that runs as process 1 handles signals, it exits with 0 on SIGTERM or SIGINT",
  { skip: CANNOT_UNSHARE },
  (t) => exitsAfterStop(t, { prefix: IN_NAMESPACE }),
);

t.test(
  "SIGHUP, SIGUSR1 and SIGUSR2 neither end a node nor open a debugger, with or without nohup",
  async (t) => {
    for (const prefix of [[], ["nohup"]]) {
      const env = await nodeSettings(t, DRAIN_MS);
      const node = await startUntilHandled(t, ["start"], { env, prefix });
      const ignored = ["SIGHUP", "SIGUSR1", "SIGUSR2"] as const;
      for (const signal of ignored) node.kill(signal);
      const { apiPort } = await node.logged("The node is ready");
      for (const signal of ignored) node.kill(signal);
      const response = await fetch(`http://127.0.0.1:${apiPort}/readyz`);
      t.equal(response.status, 200, "the node is not draining");
      node.kill("SIGTERM");
      const { code, stderr } = await node.exit;
      t.equal(code, 0);
      t.notMatch(stderr, /debugger|inspector/i);
    }
  },
);

t.test(
  "a command that receives SIGTERM while it waits for input exits with a non-zero code",
  async (t) => {
    const preload = `import { PassThrough } from "node:stream";
    Object.defineProperty(process, "stdin", { value: new PassThrough() });
    setInterval(() => {}, 1000);`;
    for (const prefix of CANNOT_UNSHARE === false ? [[], IN_NAMESPACE] : [[]]) {
      const running = await startUntilHandled(t, ["hash-password"], { prefix, preload });
      running.kill("SIGTERM");
      const { code, stdout } = await running.exit;
      t.not(code, 0);
      t.equal(stdout, "");
    }
  },
);
