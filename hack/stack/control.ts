/**
 * Control over a stack that another process keeps running: HTTP on a Unix socket in the stack's folder.
 * Tests use it to kill, freeze and restart parts; `make stack-down` uses it to end the stack.
 */
import { createServer, request, type IncomingMessage, type Server } from 'node:http';
import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { describeStack, type PartDescription, type StackDescription } from './description.ts';
import type { FaultRule } from './engine-faults.ts';
import type { Stack } from './stack.ts';

export const controlSocket = (dir: string): string => join(dir, 'control.sock');

export type Command =
  | { do: 'describe' }
  | { do: 'signal'; part: string; signal: NodeJS.Signals }
  | { do: 'restart'; part: string; failPoints?: string }
  | { do: 'addRole'; role: 'operator' | 'worker'; failPoints?: string }
  | { do: 'removeRole'; part: string }
  | { do: 'optIn'; namespace: string }
  | { do: 'engineFaults'; scope: string; rules: FaultRule[] }
  | { do: 'end' };

/** The stack from afar. Every call throws with the supervisor's own message when it could not be done. */
export interface StackControl {
  describe(): Promise<StackDescription>;
  part(name: string): Promise<PartDescription>;
  signal(part: string, signal: NodeJS.Signals): Promise<void>;
  /** Ends the part if it still runs and starts it again, same address and data, and waits until it is ready. */
  restart(part: string, options?: { failPoints?: string }): Promise<void>;
  /** Resolves with the name of the new process. */
  addRole(role: 'operator' | 'worker', options?: { failPoints?: string }): Promise<string>;
  removeRole(part: string): Promise<void>;
  optIn(namespace: string): Promise<void>;
  /** Replaces the faults of this scope on all engines; give each rule a `match` that only its own calls have. */
  engineFaults(scope: string, rules: FaultRule[]): Promise<void>;
  end(): Promise<void>;
}

export function connectStack(dir: string): StackControl {
  const send = (command: Command): Promise<unknown> => post(controlSocket(dir), command);
  const describe = async (): Promise<StackDescription> =>
    (await send({ do: 'describe' })) as StackDescription;
  return {
    describe,
    part: async (name) => {
      const { parts } = await describe();
      const part = parts.find((each) => each.name === name);
      if (part === undefined) throw noSuchPart(name, parts);
      return part;
    },
    signal: async (part, signal) => void (await send({ do: 'signal', part, signal })),
    restart: async (part, options = {}) => void (await send({ do: 'restart', part, ...options })),
    addRole: async (role, options = {}) => (await send({ do: 'addRole', role, ...options })) as string,
    removeRole: async (part) => void (await send({ do: 'removeRole', part })),
    optIn: async (namespace) => void (await send({ do: 'optIn', namespace })),
    engineFaults: async (scope, rules) => void (await send({ do: 'engineFaults', scope, rules })),
    end: async () => void (await send({ do: 'end' })),
  };
}

/** Serves the commands. `end` answers first and then calls `onEnd`. */
export async function serveControl(stack: Stack, onEnd: () => void): Promise<Server> {
  const path = controlSocket(stack.dir);
  rmSync(path, { force: true });
  const server = createServer((incoming, outgoing) => {
    void (async () => {
      try {
        const command = JSON.parse(await bodyOf(incoming)) as Command;
        const result = await obey(stack, command);
        outgoing.end(JSON.stringify({ result: result ?? null }));
        if (command.do === 'end') onEnd();
      } catch (error) {
        outgoing.statusCode = 500;
        outgoing.end(JSON.stringify({ error: error instanceof Error ? error.message : String(error) }));
      }
    })();
  });
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen(path, resolve);
  });
  return server;
}

async function obey(stack: Stack, command: Command): Promise<unknown> {
  switch (command.do) {
    case 'describe':
      return describeStack(stack);
    case 'signal':
      return partOf(stack, command.part).kill(command.signal);
    case 'restart': {
      const role = stack.roles.find(({ name }) => name === command.part);
      if (role !== undefined) return role.restart({ failPoints: command.failPoints });
      await partOf(stack, command.part).restart();
      return command.part.startsWith('engine-') ? stack.engineFaults.send() : undefined;
    }
    case 'engineFaults':
      return stack.engineFaults.set(command.scope, command.rules);
    case 'addRole':
      return (await stack.addRole(command.role, { failPoints: command.failPoints })).name;
    case 'removeRole':
      return stack.removeRole(command.part);
    case 'optIn':
      return stack.optIn(command.namespace);
    case 'end':
      return undefined;
  }
}

function partOf(stack: Stack, name: string) {
  const part = stack.part(name);
  if (part === undefined) throw noSuchPart(name, stack.parts());
  return part;
}

const noSuchPart = (name: string, parts: readonly { name: string }[]): Error =>
  new Error(`the stack has no part "${name}", only ${parts.map((part) => part.name).join(', ')}`);

function post(socketPath: string, command: Command): Promise<unknown> {
  return new Promise((resolve, reject) => {
    const outgoing = request({ socketPath, method: 'POST', path: '/', agent: false }, (answer) => {
      bodyOf(answer).then((text) => {
        const { result, error } = JSON.parse(text) as { result?: unknown; error?: string };
        if (error === undefined) resolve(result);
        else reject(new Error(error));
      }, reject);
    });
    outgoing.on('error', reject);
    outgoing.end(JSON.stringify(command));
  });
}

async function bodyOf(message: IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of message) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks).toString('utf8');
}
