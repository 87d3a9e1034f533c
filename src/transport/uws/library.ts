// Explains why the uWebSockets.js binary does not load on a machine, and how to fix it. Keeps no
// state. Must import nothing from the library.

export interface Machine {
  readonly node: string;
  readonly platform: string;
  readonly arch: string;
  /** glibc version. `undefined` if the system does not use glibc. */
  readonly glibc: string | undefined;
}

export function thisMachine(): Machine {
  const { platform, arch, versions, report } = process;
  const { header } = report.getReport() as {
    readonly header: { readonly glibcVersionRuntime?: string };
  };
  const glibc = header.glibcVersionRuntime;
  return { node: versions.node, platform, arch, glibc };
}

/**
 * Command that installs the newer release, for Node 20, 22, 24 and 25. If this release is installed
 * and loads, the driver uses it instead of the release in the lock file.
 */
const NEWER = "npm install --save-exact @btc-vision/uwebsockets.js@20.57.0";
const NEWER_GLIBC = "2.38";
const NEWER_NODES = [20, 22, 24, 25];
const PINNED = "npm install --save-exact uWebSockets.js@npm:uws-pack@20.0.8";
const PINNED_NODES = [20, 21, 22];

export function whyItDoesNotLoad(error: unknown, machine: Machine): string {
  const { node, platform, arch } = machine;
  const text = error instanceof Error ? error.message : String(error);
  const reason = /^Error: (.*)$/m.exec(text)?.[1] ?? text.split("\n")[0];
  const where = `Node ${node} on ${platform} ${arch}${libcOf(machine)}`;
  return `uWebSockets.js does not load in ${where}: ${reason}. ${remedy(machine)}`;
}

function libcOf({ platform, glibc }: Machine): string {
  if (platform !== "linux") return "";
  return glibc === undefined ? " without glibc" : ` with glibc ${glibc}`;
}

function remedy(machine: Machine): string {
  const { platform, glibc } = machine;
  const major = Number.parseInt(machine.node, 10);
  if (platform === "linux" && glibc === undefined)
    return "It needs a system with glibc, such as Debian or Ubuntu";
  const fits =
    platform !== "linux" || (glibc ?? "").localeCompare(NEWER_GLIBC, "en", { numeric: true }) >= 0;
  if (fits && NEWER_NODES.includes(major)) return `In Jindou's folder, run: ${NEWER}`;
  if (PINNED_NODES.includes(major)) return `In Jindou's folder, run: ${PINNED}`;
  if (fits) return "Use Node 20, 22 or 24";
  return `Use Node 20 or 22. With Node 24, uWebSockets.js needs glibc ${NEWER_GLIBC} or newer, as in Debian 13 and Ubuntu 24.04. On such a system, run: ${NEWER}`;
}
