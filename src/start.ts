// Runs one node in this process: handles its start, signals, drain and exit. Only this file may
// exit the process of a running node. Logs every error.

import { BrokerError } from "./broker/errors.ts";
import { ConfigError } from "./config/errors.ts";
import type { SourcedConfig } from "./config/load.ts";
import type { Config } from "./config/schema.ts";
import { demoAddress, secretsOf, startSummary } from "./config/summary.ts";
import { isLoopback, listensBeyondLoopback, parseAddress } from "./lib/address.ts";
import { LAST_FLUSH_MS, LogOutput } from "./observe/log-output.ts";
import { createLogger, type Logger, logForm } from "./observe/logger.ts";
import { NewestErrors } from "./observe/newest-errors.ts";
import { collectLibraryOutput } from "./server/library-output.ts";
import { reasonOf, StartError } from "./server/start-error.ts";
import { createServer } from "./server.ts";
import { onStopSignal } from "./signals.ts";
import { chooseDriver } from "./transport/drivers.ts";

type Server = Awaited<ReturnType<typeof createServer>>;

/**
 * Time for closing the node and writing the last log lines after the drain. After this time, the
 * process exits in any case.
 */
const GRACE_MS = 5000;
const STANDARD_OUTPUT = 1;
const STANDARD_ERROR = 2;
/** Time during which further signals are ignored, because npm forwards a Ctrl-C a second time. */
const REPEATED_SIGNAL_MS = 300;

/**
 * Runs a node until a signal arrives. The first signal drains the node, and the process exits with
 * 0. A later signal makes the process exit with 1. With `newStore`, a lost store is first moved
 * aside.
 */
export async function startNode(
  { config, places: configPlaces }: SourcedConfig,
  version: string,
  newStore = false,
): Promise<void> {
  const transport = await chooseDriver(config.transport).catch((error: unknown) => {
    throw new ConfigError([`${reasonOf(error)}.`]);
  });
  process.stderr.on("error", () => {}); // libraries write to it, and the disk may be full
  const output = new LogOutput(STANDARD_OUTPUT);
  const form = logForm(config.log.format, {
    isTerminal: process.stdout.isTTY === true,
    mayHaveColours: (process.env.NO_COLOR ?? "") === "",
  });
  const { level } = config.log;
  const newestErrors = new NewestErrors();
  const logger = createLogger({ level, form, secrets: secretsOf(config), newestErrors }, output);
  collectLibraryOutput((text) => logger.warn({ text }, "A library has printed output"));
  output.onResumed = (dropped) =>
    logger.warn({ dropped }, "Log lines were dropped because nobody read standard output");
  const terminal = new LogOutput(STANDARD_ERROR);
  process.on("exit", () => {
    output.flushBeforeExit();
    terminal.flushBeforeExit();
  });
  exitOnBug(logger);
  const onUnfit = (err: unknown) => {
    logger.fatal({ err }, "The node exits because it must stop serving clients");
    terminal.write(`jindou: ${reasonOf(err)}.\n`);
    process.exit(1);
  };
  const droppedLogLines = () => output.dropped;
  const deps = {
    logger,
    droppedLogLines,
    newestErrors: () => newestErrors.list(),
    version,
    transport: transport.driver,
    newStore,
    configPlaces,
    // The password is not written to the log, because logs are stored and forwarded.
    announcePassword: (username: string, password: string) =>
      terminal.write(passwordText(username, password)),
    onUnfit,
  };
  if (transport.warning !== undefined) logger.warn(transport.warning);
  const server = await createServer(config, deps);
  const stopping = stopOnSignal(server, {
    logger,
    timeoutMs: config.drain.noticeMs + config.drain.timeoutMs + GRACE_MS - 2 * LAST_FLUSH_MS,
  });
  const ports = await server.start().catch((err: unknown) => {
    if (stopping.isRequested()) return undefined;
    const isExplained =
      err instanceof StartError || (err instanceof BrokerError && err.cause === undefined);
    const isShownOnce = form !== "json" && process.stderr.isTTY; // the caller prints the reason
    if (isExplained && isShownOnce) throw err;
    if (isExplained) logger.fatal({ reason: err.message }, "The node cannot start");
    else logger.fatal({ err }, "The node cannot start");
    throw err;
  });
  if (ports === undefined) return; // closeAndExit ends the process
  if (admitsEveryone(config))
    logger.warn(
      { listen: config.client.listen },
      "auth.clients is none: every client that reaches client.listen may connect as any user",
    );
  if (admitsEveryProgram(config))
    logger.warn(
      { listen: config.protocol.wkproto.listen },
      "auth.clients is none: every program that reaches protocol.wkproto.listen may connect as any user",
    );
  const { name, library } = transport.driver;
  const demo = demoAddress(config, ports.apiPort);
  logger.info({ version, ...ports, transport: name, library, demo }, "The node is ready");
  if (process.stderr.isTTY) terminal.write(startSummary(config, ports, version));
}

function admitsEveryone({ auth, client }: Config): boolean {
  return auth.clients === "none" && !isLoopback(parseAddress(client.listen)?.host ?? "");
}

function admitsEveryProgram({ auth, protocol }: Config): boolean {
  const { listen } = protocol.wkproto;
  return auth.clients === "none" && listensBeyondLoopback([listen]);
}

function passwordText(username: string, password: string): string {
  return `Created the manager ${username} with the password ${password}\nThe password is shown only once. Set JINDOU_ADMIN_PASSWORD to choose your own.\n`;
}

function exitOnBug(logger: Logger): void {
  const fatal = (err: unknown) => {
    logger.fatal({ err }, "The node exits because of a bug");
    process.exit(1);
  };
  process.on("uncaughtException", fatal);
  process.on("unhandledRejection", fatal);
}

interface StopPlan {
  readonly logger: Logger;
  readonly timeoutMs: number;
}

function stopOnSignal(server: Server, plan: StopPlan): { readonly isRequested: () => boolean } {
  let stoppingSinceMs: number | undefined;
  const stop = (signal: NodeJS.Signals) => {
    const nowMs = performance.now();
    if (stoppingSinceMs !== undefined) {
      if (nowMs - stoppingSinceMs > REPEATED_SIGNAL_MS) process.exit(1);
      return;
    }
    stoppingSinceMs = nowMs;
    plan.logger.info({ signal }, "The node is stopping");
    void closeAndExit(server, plan);
  };
  onStopSignal(stop);
  return { isRequested: () => stoppingSinceMs !== undefined };
}

async function closeAndExit(server: Server, { logger, timeoutMs }: StopPlan): Promise<void> {
  setTimeout(() => {
    logger.fatal({ timeoutMs }, "The node exits because closing took too long");
    process.exit(1);
  }, timeoutMs);
  try {
    await server.close();
    logger.info("The node has stopped");
    process.exit(0);
  } catch (err) {
    logger.fatal({ err }, "The node could not be closed cleanly");
    process.exit(1);
  }
}
