/** kubectl as a function. */
import { spawn } from 'node:child_process';
import { dirname, join } from 'node:path';
import { binary } from './paths.ts';

export interface KubectlOptions {
  kubeconfig: string;
  /** Given on standard input; use `-f -`. */
  input?: string;
  timeoutMilliseconds?: number;
}

/** Standard output of kubectl. Throws with what kubectl said when it fails. */
export function kubectl(args: readonly string[], options: KubectlOptions): Promise<string> {
  return new Promise((resolve, reject) => {
    const child = spawn(binary('kubectl'), args, {
      env: {
        ...process.env,
        KUBECONFIG: options.kubeconfig,
        // Away from the user's: what is asked before the CRDs exist would hide them from their first `kubectl get`.
        KUBECACHEDIR: join(dirname(options.kubeconfig), 'kubectl-cache'),
      },
      stdio: ['pipe', 'pipe', 'pipe'],
      timeout: options.timeoutMilliseconds ?? 60_000,
    });
    const output: Buffer[] = [];
    const errors: Buffer[] = [];
    child.stdout.on('data', (chunk: Buffer) => output.push(chunk));
    child.stderr.on('data', (chunk: Buffer) => errors.push(chunk));
    child.once('error', reject);
    child.once('close', (code, signal) => {
      if (code === 0) resolve(Buffer.concat(output).toString('utf8'));
      else {
        const said = Buffer.concat(errors).toString('utf8').trim();
        reject(new Error(`kubectl ${args.join(' ')} failed (${signal ?? `code ${code}`}): ${said}`));
      }
    });
    // kubectl may end before it has read everything; its exit code says so.
    child.stdin.on('error', () => {});
    child.stdin.end(options.input ?? '');
  });
}
